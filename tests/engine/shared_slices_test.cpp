// Slices that several tensor ranks have elements of: each counts once in every norm.
#include "capstan/engine/shared_slices.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "tests/support/thread_groups.h"

namespace capstan::engine {
namespace {

using layout::Box;
using Shape = std::vector<std::int64_t>;

// Of the same tensor: what each tensor rank has, and how many elements they have together.
struct Shared {
  Shape shape;
  std::vector<Box> boxes;
  std::int64_t elems = 0;
};

constexpr std::int64_t kWidth = test::kWidth;
const std::vector<Shared> kShared = {
    {{2 * kWidth, kWidth}, {{{0, 0}, {kWidth, kWidth}}, {{kWidth, 0}, {kWidth, kWidth}}}, 288},
    {{2 * kWidth, kWidth}, {{{5, 0}, {kWidth, kWidth}}, {{5, 0}, {kWidth, kWidth}}}, 144},
    {{2 * kWidth, kWidth}, {{{0, 0}, {kWidth, kWidth}}, {{7, 0}, {kWidth, kWidth}}}, 144 + 7 * 12},
    {{kWidth, 2 * kWidth}, {{{0, 3}, {kWidth, kWidth}}, {{0, 0}, {kWidth, kWidth}}}, 144 + 3 * 12}};

// All gradients are 1, so that a norm tells how many elements were counted.
double norm_of_ones(Engine& engine, test::SmallModel& model) {
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& param : model->parameters()) loss = loss + param.sum();
  engine.backward(loss);
  std::vector<int> all(engine.inside().sharded().plan().params.size());
  std::iota(all.begin(), all.end(), 0);
  engine.inside().sharded().finish_gradients();
  const double of_group = engine.inside().access().gradient_norms({all}).front();
  const double norm = engine.step().grad_norm;
  EXPECT_NEAR(of_group, norm, 1e-9 * norm);
  return norm;
}

TEST(SharedSlices, CountOnceInNorms) {
  for (const Shared& shared : kShared) {
    for (const int stage : {0, 1, 2}) {
      ThreadMeetings meetings;
      run_ranks(4, [&](comm::Group& group) {
        ThreadGroups maker(meetings, group.rank());
        test::SmallModel model(test::kWidth, test::kBlocks, test::kClasses);
        test::fill(*model, 3);
        shard::ModelView view = shard::view_model(*model);
        view.slices.resize(view.params.size());
        std::int64_t elems = 0;
        for (std::size_t i = 0; i < view.params.size(); ++i) {
          elems += view.params[i].numel();
          if (view.names[i] != "entry.weight") continue;
          elems += shared.elems - view.params[i].numel();
          view.slices[i] = {shared.shape, shared.boxes[static_cast<std::size_t>(group.rank() % 2)]};
        }
        Options options = test::fp32_options(stage);
        options.mesh.tensor = 2;
        Engine engine(view, options, {.group = {group, maker}});
        const double norm = norm_of_ones(engine, model);
        EXPECT_NEAR(norm * norm, static_cast<double>(elems), 1e-6)
            << to_text(shared.boxes[0]) << " and " << to_text(shared.boxes[1]) << ", stage "
            << stage;
      });
    }
  }
}

// Three ranks, where the last has nothing that another does not have.
TEST(SharedSlices, CountOnTheFirstRankThatHasThem) {
  run_ranks(3, [](comm::Group& group) {
    shard::Plan plan;
    const std::vector<Box> boxes = {{{0}, {4}}, {{2}, {4}}, {{1}, {5}}};
    const Box& mine = boxes[static_cast<std::size_t>(group.rank())];
    plan.params.push_back({.name = "key", .sizes = mine.length});
    plan.params.back().slice = {Shape{6}, mine};
    plan.params.push_back({.name = "norm", .sizes = {9}});
    count_slices_once(plan, group, at::kCPU);
    const std::vector<std::optional<std::vector<layout::ElemRange>>> expected = {
        std::nullopt, {{{2, 4}}}, {std::vector<layout::ElemRange>{}}};
    EXPECT_EQ(plan.params[0].counted, expected[static_cast<std::size_t>(group.rank())]);
    EXPECT_EQ(plan.params[1].counted, std::nullopt);
  });
}

}  // namespace
}  // namespace capstan::engine
