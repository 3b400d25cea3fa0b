// Split linear layers against torch's on whole tensors.
#include "capstan/tensor_parallel/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include "capstan/profile/recorder.h"
#include "capstan/tensor_parallel/operators.h"
#include "tests/tensor_parallel/whole_and_parts.h"

namespace capstan::tensor_parallel {
namespace {

using test::expect_near;
using test::kTokens;
using test::leaf;
using test::part_of;
using test::whole_tensor;

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kIn = 10;      // 3 and 4 do not divide it: parts differ by one
constexpr std::int64_t kHidden = 14;  // likewise

struct Weights {
  at::Tensor x = leaf(whole_tensor({kBatch, kTokens, kIn}, 1));
  at::Tensor up = leaf(whole_tensor({kHidden, kIn}, 2));
  at::Tensor up_bias = leaf(whole_tensor({kHidden}, 3));
  at::Tensor down = leaf(whole_tensor({kIn, kHidden}, 4));
  at::Tensor down_bias = leaf(whole_tensor({kIn}, 5));
  at::Tensor loss_of = whole_tensor({kBatch, kTokens, kIn}, 6);

  std::vector<at::Tensor> leaves() const { return {x, up, up_bias, down, down_bias}; }
};

// An MLP of a column and a row linear; afterwards leaves have their gradients.
at::Tensor whole_mlp(const Weights& weights) {
  const at::Tensor hidden = at::gelu(at::linear(weights.x, weights.up, weights.up_bias));
  at::Tensor result = at::linear(hidden, weights.down, weights.down_bias);
  (result * weights.loss_of).sum().backward();
  return result.detach();
}

// This rank's leaves, of which `x` and `loss_of` may be parts of the sequence.
Weights parts_of(const Weights& whole, const Region& region) {
  const Place place = region.place();
  const auto sequence = [&](const at::Tensor& x) {
    if (!region.sequence_dim) return x;
    return x.chunk(place.ranks, *region.sequence_dim)[static_cast<std::size_t>(place.rank)];
  };
  Weights mine;
  mine.x = leaf(sequence(whole.x.detach()));
  mine.loss_of = sequence(whole.loss_of);
  mine.up = leaf(part_of(whole.up.detach(), cut_evenly({kHidden, kIn}, 0, place)));
  mine.up_bias = leaf(part_of(whole.up_bias.detach(), cut_evenly({kHidden}, 0, place)));
  mine.down = leaf(part_of(whole.down.detach(), cut_evenly({kIn, kHidden}, 1, place)));
  return mine;
}

at::Tensor split_mlp(const Region& region, const Weights& mine) {
  const at::Tensor hidden = at::gelu(column_linear(region, mine.x, mine.up, mine.up_bias));
  at::Tensor result = row_linear(region, hidden, mine.down, mine.down_bias);
  (result * mine.loss_of).sum().backward();
  return result.detach();
}

std::vector<at::Tensor> run_split(const Region& region) {
  const Weights mine = parts_of(Weights{}, region);
  std::vector<at::Tensor> results = {split_mlp(region, mine)};
  for (const at::Tensor& each : mine.leaves()) results.push_back(each.grad());
  return results;
}

void expect_as_whole(std::optional<std::int64_t> sequence_dim) {
  const Weights whole;
  const at::Tensor expected = whole_mlp(whole);
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](comm::Group& group) {
      const Region region{&group, sequence_dim};
      const Place place = region.place();
      const auto lies = [&](const at::Tensor& x) {
        if (!sequence_dim) return x;
        return x.chunk(place.ranks, *sequence_dim)[static_cast<std::size_t>(place.rank)];
      };
      const std::vector<at::Tensor> mine = run_split(region);
      expect_near(mine[0], lies(expected), "result");
      expect_near(mine[1], lies(whole.x.grad()), "x");
      expect_near(mine[2], part_of(whole.up.grad(), cut_evenly({kHidden, kIn}, 0, place)), "up");
      expect_near(mine[3], part_of(whole.up_bias.grad(), cut_evenly({kHidden}, 0, place)),
                  "bias of up");
      expect_near(mine[4], part_of(whole.down.grad(), cut_evenly({kIn, kHidden}, 1, place)),
                  "down");
      expect_near(mine[5], whole.down_bias.grad(), "bias of down");
    });
  }
}

TEST(SplitLinear, GivesWhatTheWholeLayersGive) { expect_as_whole({}); }

TEST(SplitLinear, GivesTheSameOverPartsOfTheSequence) {
  expect_as_whole(1);
  expect_as_whole(-2);
}

TEST(SplitLinear, GivesTheSameBitsInEveryRun) {
  for (const std::optional<std::int64_t> dim : {std::optional<std::int64_t>(), {1}}) {
    const auto run = [&] {
      return test::on_each(4, [&](comm::Group& group) { return run_split({&group, dim}); });
    };
    test::expect_same_bits(run(), run());
  }
}

// Ranks that went apart would stay apart.
TEST(SplitLinear, GivesEveryRankTheSameBitsOfWhatAllHave) {
  const auto all = test::on_each(3, [](comm::Group& group) { return run_split({&group, {}}); });
  for (const auto& mine : all) {
    for (const std::size_t shared : {0U, 1U, 5U}) {
      EXPECT_TRUE(at::equal(mine[shared], all[0][shared]));
    }
  }
}

TEST(SplitLinear, TravelsOnceEachWay) {
  run_ranks(2, [](comm::Group& group) {
    const Weights mine = parts_of(Weights{}, {&group, {}});
    split_mlp({&group, {}}, mine);
    EXPECT_EQ(group.counters()[comm::OpKind::all_reduce].calls, 2);
    EXPECT_EQ(group.counters()[comm::OpKind::all_reduce].elems, 2 * kBatch * kTokens * kIn);
  });
}

TEST(SplitLinear, WorksWithoutBiasesAndWithAFrozenInput) {
  run_ranks(2, [](comm::Group& group) {
    const Region region{&group, {}};
    Weights mine = parts_of(Weights{}, region);
    const at::Tensor hidden = column_linear(region, mine.x.detach(), mine.up);
    row_linear(region, hidden, mine.down).sum().backward();
    EXPECT_TRUE(mine.up.grad().defined());
    // One in forward; nobody asked for x's gradient.
    EXPECT_EQ(group.counters()[comm::OpKind::all_reduce].calls, 1);
  });
}

TEST(SplitLinear, FollowsAutocast) {
  run_ranks(2, [](comm::Group& group) {
    const Region region{&group, {}};
    const Weights mine = parts_of(Weights{}, region);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor hidden = column_linear(region, mine.x, mine.up, mine.up_bias);
    const at::Tensor result = row_linear(region, hidden, mine.down, mine.down_bias);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(hidden.scalar_type(), at::kBFloat16);
    EXPECT_EQ(result.scalar_type(), at::kBFloat16);
    result.to(at::kFloat).sum().backward();
    for (const at::Tensor& each : mine.leaves()) EXPECT_EQ(each.grad().scalar_type(), at::kFloat);
  });
}

// When this thread's matrix products began and ended.
thread_local std::vector<std::pair<profile::Clock::time_point, profile::Clock::time_point>>
    products;

struct ProductTimes {
  ProductTimes() {
    products.clear();
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(function.name()) == "aten::mm") {
                products.push_back({profile::Clock::now(), {}});
              }
              return nullptr;
            },
            [](const at::RecordFunction& function, at::ObserverContext*) {
              if (std::string_view(function.name()) == "aten::mm") {
                products.back().second = profile::Clock::now();
              }
            })
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~ProductTimes() { at::removeCallback(handle); }
  at::CallbackHandle handle;
};

TEST(ColumnLinear, ComputesTheWeightsGradientWhileThatOfItsInputIsSummed) {
  run_ranks(2, [](comm::Group& group) {
    const Region region{&group, {}};
    const Weights mine = parts_of(Weights{}, region);
    const at::Tensor result = column_linear(region, mine.x, mine.up);
    profile::Reader reader(group.recorder(), {profile::Kind::reduce});
    {
      const ProductTimes times;
      result.sum().backward();
    }
    const auto spans = reader.take();
    ASSERT_EQ(spans.size(), 1U);
    ASSERT_EQ(products.size(), 2U);
    EXPECT_LE(products[0].second, spans[0].host_begin);
    EXPECT_LE(spans[0].host_begin, products[1].first);
    EXPECT_LE(products[1].second, spans[0].host_end);
  });
}

}  // namespace
}  // namespace capstan::tensor_parallel
