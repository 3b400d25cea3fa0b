// A pipeline of any depth and schedule gives the bits of the same micro-batches without one.
#include "capstan/pipeline/executor.h"

#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/modules/linear.h>

#include "capstan/base/error.h"
#include "capstan/pipeline/activations.h"
#include "capstan/pipeline/schedules.h"
#include "tests/pipeline/test_stage.h"
#include "tests/support/foreign_backend.h"
#include "tests/support/run_ranks.h"

namespace capstan::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// `backend`: empty for our own; else one of somebody else's with this name.
Trained with_pipeline(Kind kind, const Shape& shape, const RunRanksOptions& options = {},
                      const std::string& backend = "") {
  Trained result;
  std::mutex mutex;
  const auto hub = comm::make_loopback_hub(shape.stages);
  run_ranks(
      shape.stages,
      [&](comm::Group& ours) {
        comm::Group foreign(c10::make_intrusive<test::ForeignBackend>(
                                comm::make_loopback(hub, ours.rank()), backend),
                            {.timeout = options.timeout});
        comm::Group& group = backend.empty() ? ours : foreign;
        TestStage stage(shape, group.rank());
        Executor executor(make_schedule(kind, shape), group, stage, at::kCPU);
        Tensors losses;
        for (int step = 0; step < kSteps; ++step) {
          for (const at::Tensor& loss : executor.run()) losses.push_back(loss);
        }
        EXPECT_EQ(stage.reduced.size(), static_cast<std::size_t>(kSteps * shape.chunks));
        const std::lock_guard lock(mutex);
        if (!losses.empty()) {
          EXPECT_EQ(group.rank(), shape.stages - 1);
          result.losses = losses;
        }
        for (int chunk = 0; chunk < shape.chunks; ++chunk) {
          result.params[shape.part(group.rank(), chunk)] = stage.layers[chunk]->parameters();
        }
      },
      options);
  return result;
}

void expect_equal(const Trained& actual, const Trained& expected, const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size()) << what;
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_TRUE(at::equal(actual.losses[i], expected.losses[i])) << what << ", loss " << i;
  }
  for (const auto& [part, params] : expected.params) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(at::equal(actual.params.at(part)[i], params[i])) << what << ", part " << part;
    }
  }
}

std::string named(Kind kind, const Shape& shape) {
  return std::string(to_string(kind)) + " of " + std::to_string(shape.stages) + " stages, " +
         std::to_string(shape.micro_batches) + " micro-batches, " + std::to_string(shape.chunks) +
         " chunks";
}

TEST(Executor, EveryScheduleGivesTheBitsOfARunWithoutAPipeline) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (int micro_batches = 1; micro_batches <= 8; ++micro_batches) {
      const Trained expected = without_pipeline(stages, micro_batches);
      for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1, Kind::deepspeed}) {
        const Shape shape = {.stages = stages, .micro_batches = micro_batches};
        expect_equal(with_pipeline(kind, shape), expected, named(kind, shape));
      }
    }
  }
}

TEST(Executor, SeveralChunksPerStageGiveThemToo) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (const int chunks : {2, 3}) {
      for (const int groups : {1, 2}) {
        const Shape shape = {.stages = stages, .micro_batches = groups * stages, .chunks = chunks};
        expect_equal(with_pipeline(Kind::interleaved, shape),
                     without_pipeline(shape.parts(), shape.micro_batches),
                     named(Kind::interleaved, shape));
      }
    }
  }
}

TEST(Executor, SlowTransfersChangeNothing) {
  RunRanksOptions slow;
  slow.loopback.delay = [](const comm::OpFacts&) { return std::chrono::microseconds(200); };
  const Shape shape = {.stages = 3, .micro_batches = 6};
  const Trained expected = without_pipeline(3, 6);
  for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1, Kind::deepspeed}) {
    expect_equal(with_pipeline(kind, shape, slow), expected, named(kind, shape));
  }
}

// As over Gloo, which tells the end of a transfer only to whoever waits for it.
TEST(Executor, OtherBackendsGiveThemToo) {
  for (const std::string backend : {"foreign", "gloo"}) {
    const Shape shape = {.stages = 3, .micro_batches = 6};
    const Trained expected = without_pipeline(3, 6);
    for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1, Kind::deepspeed}) {
      expect_equal(with_pipeline(kind, shape, {}, backend), expected, named(kind, shape));
    }
    const Shape chunks = {.stages = 2, .micro_batches = 4, .chunks = 2};
    expect_equal(with_pipeline(Kind::interleaved, chunks, {}, backend), without_pipeline(4, 4),
                 named(Kind::interleaved, chunks));
  }
}

TEST(Executor, InferenceGivesTheLossesAndNoGradient) {
  const Trained expected = without_pipeline(3, 4);
  const Shape shape = {.stages = 3, .micro_batches = 4};
  run_ranks(3, [&](comm::Group& group) {
    TestStage stage(shape, group.rank());
    Executor executor(make_schedule(Kind::inference, shape), group, stage, at::kCPU);
    const Tensors losses = executor.run();
    EXPECT_EQ(losses.size(), group.rank() == 2 ? 4u : 0u);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_TRUE(at::equal(losses[i], expected.losses[i]));  // of the first step
    }
    EXPECT_FALSE(stage.layers[0]->weight.grad().defined());
  });
}

// Per stage, of how many micro-batches it holds the graph at most.
std::vector<int> held_by(Kind kind, const Shape& shape) {
  std::vector<int> held(static_cast<std::size_t>(shape.stages));
  run_ranks(shape.stages, [&](comm::Group& group) {
    class Counted final : public Stage {
     public:
      Tensors inputs(int micro_batch) override { return inputs_of(0, micro_batch); }
      Tensors labels(int micro_batch) override { return labels_of(0, micro_batch); }
      Tensors forward(int, const Tensors& inputs) override {
        Tensors outputs = forward_of(layer_, inputs);
        made_.emplace_back(outputs[0].grad_fn());
        std::erase_if(made_, [](const auto& node) { return node.expired(); });
        most = std::max(most, static_cast<int>(made_.size()));
        return outputs;
      }
      at::Tensor loss(const Tensors& outputs, const Tensors& labels) override {
        return loss_of(outputs, labels);
      }
      void step() override {}
      int most = 0;

     private:
      torch::nn::Linear layer_ = layer_of(0);
      std::vector<std::weak_ptr<torch::autograd::Node>> made_;
    } stage;
    Executor(make_schedule(kind, shape), group, stage, at::kCPU).run();
    held[static_cast<std::size_t>(group.rank())] = stage.most;
  });
  return held;
}

TEST(Executor, HoldsAsManyActivationsAsTheScheduleSays) {
  for (const int micro_batches : {4, 12}) {
    const Shape shape = {.stages = 3, .micro_batches = micro_batches};
    for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1}) {
      EXPECT_EQ(held_by(kind, shape), peak_activations(make_schedule(kind, shape)))
          << named(kind, shape);
    }
  }
}

// What a rank's own error says, and what its peers' say.
std::vector<std::string> errors_when(const std::function<void(TestStage&, int)>& prepare) {
  const Shape shape = {.stages = 3, .micro_batches = 5};
  std::vector<std::string> errors(3);
  run_ranks(3, [&](comm::Group& group) {
    TestStage stage(shape, group.rank());
    prepare(stage, group.rank());
    Executor executor(make_schedule(Kind::one_f_one_b, shape), group, stage, at::kCPU);
    try {
      executor.run();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return errors;
}

TEST(Executor, AStageThatFailsIsNamedOnAllWithItsMicroBatch) {
  const std::vector<std::string> errors = errors_when([](TestStage& stage, int rank) {
    if (rank != 1) return;
    stage.before_forward = [calls = 0]() mutable {
      if (++calls == 3) throw std::runtime_error("the layer broke");
    };
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("the layer broke"), HasSubstr("stage 1 of 3, forward 2")));
  for (const int peer : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(peer)],
                AllOf(HasSubstr("the layer broke"), HasSubstr("stage 1 of 3, forward 2"),
                      HasSubstr("stage " + std::to_string(peer) + " of 3, ")));
  }
}

TEST(Executor, ABatchThatEndsEarlyIsAnErrorOnAll) {
  class ShortStage final : public Stage {
   public:
    Tensors inputs(int micro_batch) override {
      if (micro_batch == 2) throw std::runtime_error("the data has ended");
      return inputs_of(0, micro_batch);
    }
    Tensors labels(int micro_batch) override { return labels_of(0, micro_batch); }
    Tensors forward(int, const Tensors& inputs) override { return forward_of(layer_, inputs); }
    at::Tensor loss(const Tensors& outputs, const Tensors& labels) override {
      return loss_of(outputs, labels);
    }
    void step() override { ADD_FAILURE() << "there is no whole batch"; }

   private:
    torch::nn::Linear layer_ = layer_of(0);
  };
  run_ranks(2, [](comm::Group& group) {
    ShortStage stage;
    const Shape shape = {.stages = 2, .micro_batches = 4};
    Executor executor(make_schedule(Kind::gpipe, shape), group, stage, at::kCPU);
    try {
      executor.run();
      ADD_FAILURE() << "it cannot end well";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("the data has ended"), HasSubstr("stage 0 of 2, load 2")));
    }
  });
}

TEST(Executor, RefusesAScheduleForAnotherNumberOfStages) {
  run_ranks(2, [](comm::Group& group) {
    TestStage stage({.stages = 2}, group.rank());
    EXPECT_THROW(Executor(make_schedule(Kind::gpipe, {.stages = 3}), group, stage, at::kCPU),
                 ConfigError);
  });
}

}  // namespace
}  // namespace capstan::pipeline
