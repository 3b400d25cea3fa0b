// How well the executor keeps its stages busy, on clocks of their own: what a stage computes moves
// its clock on, and each message is the time at which it was made. So the result depends on what
// waits for what, and not on how busy the machine is. (benchmarks/pipeline measures real time.)
#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "capstan/pipeline/executor.h"
#include "capstan/pipeline/schedules.h"
#include "tests/support/run_ranks.h"

namespace capstan::pipeline {
namespace {

class ClockStage final : public Stage {
 public:
  Tensors inputs(int) override { return {at::zeros({1})}; }
  Tensors labels(int) override { return {}; }
  Tensors forward(int, const Tensors& inputs) override {
    work(inputs[0].item<double>(), 1);
    most_held_ = std::max(most_held_, ++held_);
    return {made_of(inputs[0])};
  }
  at::Tensor loss(const Tensors& outputs, const Tensors&) override {
    return made_of(made_of_.at(outputs[0].unsafeGetTensorImpl()));
  }
  void backward(int, const Differential& of) override {
    work(time_of(of), 2);
    --held_;
    at::Tensor& input = made_of_.at(of.outputs[0].unsafeGetTensorImpl());
    if (input.requires_grad()) input.mutable_grad() = at::full({1}, now_);
  }
  Tensors backward_inputs(int, const Differential& of, const Tensors& inputs) override {
    work(time_of(of), 1);
    Tensors gradients;
    for (const at::Tensor& input : inputs) {
      gradients.push_back(input.requires_grad() ? at::full({1}, now_) : at::Tensor());
    }
    return gradients;
  }
  void backward_weights(int, const Differential&) override {
    work(0, 1);
    --held_;
  }
  void step() override { made_of_.clear(); }

  double now() const { return now_; }
  int most_held() const { return most_held_; }

 private:
  void work(double ready, double cost) { now_ = std::max(now_, ready) + cost; }
  static double time_of(const Differential& of) {
    return of.of_loss() ? 0 : of.gradients[0].item<double>();
  }
  at::Tensor made_of(const at::Tensor& input) {
    const at::Tensor made = at::full({1}, now_).requires_grad_(true);
    kept_.push_back(made);
    made_of_[made.unsafeGetTensorImpl()] = input;
    return made;
  }

  double now_ = 0;
  int held_ = 0;
  int most_held_ = 0;
  Tensors kept_;
  std::map<const void*, at::Tensor> made_of_;
};

struct Measured {
  double time = 0;
  std::vector<int> held;  // parts of micro-batches, by stage
};

Measured run(Kind kind, const Shape& shape) {
  Measured measured{.held = std::vector<int>(static_cast<std::size_t>(shape.stages))};
  std::mutex mutex;
  run_ranks(shape.stages, [&](comm::Group& group) {
    ClockStage stage;
    Executor executor(make_schedule(kind, shape), group, stage, at::kCPU);
    executor.run();
    const std::lock_guard lock(mutex);
    measured.time = std::max(measured.time, stage.now());
    measured.held[static_cast<std::size_t>(group.rank())] = stage.most_held();
  });
  return measured;
}

constexpr double kForwardAndBackward = 3;

TEST(Efficiency, IsTheFormulasOfEverySchedule) {
  for (const int stages : {2, 4, 8}) {
    for (const int per_stage : {1, 4, 8}) {
      const Shape shape = {.stages = stages, .micro_batches = per_stage * stages};
      const double work = kForwardAndBackward * shape.micro_batches;
      const double idle = kForwardAndBackward * (stages - 1);
      const std::string what =
          fmt::format("{} stages, {} micro-batches", stages, shape.micro_batches);
      EXPECT_EQ(run(Kind::one_f_one_b, shape).time, work + idle) << what;
      EXPECT_EQ(run(Kind::gpipe, shape).time, work + idle) << what;
      EXPECT_EQ(run(Kind::zb_h1, shape).time, work + (stages - 1)) << what;
      const Shape chunks = {stages, shape.micro_batches, 2};
      EXPECT_EQ(run(Kind::interleaved, chunks).time, 2 * work + idle)
          << what;  // in halves of a stage
    }
  }
}

TEST(Efficiency, ActivationsOf1f1bDoNotGrowWithMicroBatchesAndThoseOfGpipeDo) {
  for (const int micro_batches : {4, 16, 32}) {
    const Shape shape = {.stages = 4, .micro_batches = micro_batches};
    EXPECT_EQ(run(Kind::one_f_one_b, shape).held, (std::vector{4, 3, 2, 1}));
    EXPECT_EQ(run(Kind::gpipe, shape).held, std::vector<int>(4, micro_batches));
  }
}

}  // namespace
}  // namespace capstan::pipeline
