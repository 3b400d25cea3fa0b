#include "capstan/layout/state_bytes.h"

#include <gtest/gtest.h>

namespace capstan::layout {
namespace {

constexpr std::int64_t kParams = 1'000'000;
constexpr std::int64_t kLayer = 40'000;

StateQuestion question(bool optimizer, bool params, bool sharded_init) {
  return {.params = kParams,
          .largest_layer = kLayer,
          .gpus_per_node = 4,
          .nodes = 2,
          .offload_optimizer = optimizer,
          .offload_params = params,
          .sharded_init = sharded_init,
          .host_factor = 2};
}

TEST(StateBytes, Stage2KeepsParametersWholeAndCutsTheRestOverAllGpus) {
  EXPECT_EQ(
      stage2_state_bytes(question(false, false, true)),
      (StateBytes{.host_per_node = 2 * 4 * 4 * kParams, .device = 2 * kParams + 18 * kParams / 8}));
  EXPECT_EQ(stage2_state_bytes(question(true, false, true)),
            (StateBytes{.host_per_node = 2 * 32 * kParams, .device = 2 * kParams}));
}

TEST(StateBytes, Stage3CutsEverythingAndHoldsOneLayer) {
  const std::int64_t layer = 4 * kLayer;
  EXPECT_EQ(stage3_state_bytes(question(false, false, true)),
            (StateBytes{2 * 16 * kLayer, layer + 18 * kParams / 8, layer}));
  EXPECT_EQ(stage3_state_bytes(question(false, false, false)),
            (StateBytes{2 * 16 * kParams, layer + 18 * kParams / 8, layer}));
  EXPECT_EQ(stage3_state_bytes(question(true, false, true)),
            (StateBytes{2 * 8 * kParams, layer + 2 * kParams / 8, layer}));
  EXPECT_EQ(stage3_state_bytes(question(true, true, true)),
            (StateBytes{2 * 9 * kParams, layer, layer}));
  EXPECT_EQ(stage3_state_bytes(question(true, true, false)),
            (StateBytes{2 * 16 * kParams, layer, layer}));
}

}  // namespace
}  // namespace capstan::layout
