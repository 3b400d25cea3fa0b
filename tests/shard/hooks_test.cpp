// What hooks tell the core, and when: uses of units, gradients, backwards of whoever runs them.
#include "capstan/shard/hooks.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "capstan/base/error.h"
#include "capstan/nn/unit.h"
#include "capstan/shard/sharded_model.h"
#include "tests/support/run_ranks.h"

namespace capstan::shard {
namespace {

constexpr int kWidth = 8;

struct TwoUnits : torch::nn::Module {
  TwoUnits()
      : first(register_module("first", nn::Unit<torch::nn::Linear>(kWidth, kWidth))),
        second(register_module("second", nn::Unit<torch::nn::Linear>(kWidth, kWidth))) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& param : parameters()) param.fill_(0.125);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }

  nn::Unit<torch::nn::Linear> first, second;
};

struct SeenBackwards final : BackwardWatcher {
  void backward_begins() override { ++begun; }
  int begun = 0;
};

// One rank's model, core and hooks.
struct Hooked {
  Hooked(comm::Group& group, int stage, bool cast = false)
      : mesh(layout::Mesh({.shard = group.size()}, group.size()), group, nullptr),
        view(view_model(model)) {
    std::vector<ParamSpec> params;
    for (std::size_t i = 0; i < view.names.size(); ++i) {
      params.push_back({.name = view.names[i], .sizes = view.sizes[i]});
    }
    Plan plan = make_plan(params, view.boundaries,
                          {.shards = group.size(), .persistence_threshold_elems = 0});
    Settings settings{.policy = policy_for({.stage = stage})};
    settings.reduce.schedule = settings.policy.reduce;
    core = std::make_unique<ShardedModel>(std::move(plan), view, mesh, settings);
    hooks = std::make_unique<Hooks>(*core, view, cast, &seen);
  }

  at::Tensor loss() { return model.forward(at::full({2, kWidth}, 1, at::kFloat)).sum(); }
  double gradient_sum() {
    core->finish_gradients();
    double sum = 0;
    for (const int unit : core->step_order()) {
      sum += core->gradients().shard(unit).sum().item<double>();
    }
    return sum;
  }
  bool any_whole() {
    for (int unit = 0; unit < static_cast<int>(core->plan().units.size()); ++unit) {
      if (core->unit(unit).state() != UnitState::sharded) return true;
    }
    return false;
  }

  comm::MeshGroups mesh;
  TwoUnits model;
  ModelView view;
  SeenBackwards seen;
  std::unique_ptr<ShardedModel> core;
  std::unique_ptr<Hooks> hooks;
};

TEST(Hooks, MakeAUnitWholeForItsUsesOnly) {
  run_ranks(2, [](comm::Group& group) {
    Hooked all(group, /*stage=*/3);
    EXPECT_FALSE(all.any_whole());
    const at::Tensor loss = all.loss();  // each weight was whole, or this would throw
    EXPECT_EQ(loss.item<float>(),
              2 * kWidth * (kWidth * 0.125F * (kWidth * 0.125F + 0.125F) + 0.125F));
    all.hooks->begin_backward(/*sync=*/true);
    loss.backward();
    all.hooks->end_backward();
    EXPECT_FALSE(all.any_whole());
  });
}

TEST(Hooks, HandEveryGradientOverTimesItsFactor) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(2, [stage](comm::Group& group) {
      Hooked all(group, stage);
      const auto sum_of = [&](double factor) {
        all.core->clear_gradients();
        const at::Tensor loss = all.loss();
        all.hooks->begin_backward(/*sync=*/true, factor);
        loss.backward();
        all.hooks->end_backward();
        return all.gradient_sum();
      };
      const double once = sum_of(1);
      EXPECT_GT(once, 0);
      EXPECT_EQ(sum_of(0.5), once / 2);
      for (const at::Tensor& param : all.model.parameters()) {
        EXPECT_FALSE(param.grad().defined());  // it is the core's
      }
      EXPECT_EQ(all.seen.begun, 2);
    });
  }
}

TEST(Hooks, TellOfBackwardsThatAreReducedOnly) {
  run_ranks(1, [](comm::Group& group) {
    Hooked all(group, /*stage=*/2);
    const auto backward = [&](bool sync) {
      const at::Tensor loss = all.loss();
      all.hooks->begin_backward(sync);
      loss.backward();
      all.hooks->end_backward();
    };
    backward(/*sync=*/false);
    EXPECT_EQ(all.seen.begun, 0);
    backward(/*sync=*/true);
    EXPECT_EQ(all.seen.begun, 1);
  });
}

// A plain loss.backward() is taken up when its first gradient comes, unless somebody said why not.
TEST(Hooks, TakeUpABackwardThatNobodyAnnounced) {
  run_ranks(2, [](comm::Group& group) {
    Hooked all(group, /*stage=*/3);
    all.hooks->set_foreign_backward({.grad_factor = 0.5});
    all.loss().backward();
    EXPECT_EQ(all.seen.begun, 1);
    EXPECT_GT(all.gradient_sum(), 0);
    EXPECT_FALSE(all.any_whole());
    all.core->clear_gradients();
    all.hooks->set_foreign_backward({.refusal = "call ours"});
    try {
      all.loss().backward();
      FAIL() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("call ours"));
    }
    all.hooks->abandon_backward();
    EXPECT_FALSE(all.any_whole());
  });
}

TEST(Hooks, CastWhatEntersAUnitWhereThatIsAsked) {
  run_ranks(1, [](comm::Group& group) {
    Hooked all(group, /*stage=*/3, /*cast=*/true);
    const at::Tensor out = all.model.forward(at::full({2, kWidth}, 1, at::kDouble));
    EXPECT_EQ(out.scalar_type(), at::kFloat);
  });
}

// A graph may outlive them.
TEST(Hooks, LeaveTheModelAloneOnceTheyAreGone) {
  run_ranks(1, [](comm::Group& group) {
    Hooked all(group, /*stage=*/0);
    const at::Tensor before = all.loss();
    all.hooks.reset();
    before.backward();
    all.loss().backward();
    EXPECT_TRUE(all.model.first->bias.grad().defined());
    EXPECT_FALSE(all.core->gradients().reducer().began());
  });
}

}  // namespace
}  // namespace capstan::shard
