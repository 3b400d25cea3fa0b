#include "capstan/comm/world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/comm/mesh_groups.h"
#include "tests/support/comm_cases.h"

namespace capstan::comm {
namespace {

TEST(World, OfOneNeedsNoLauncher) {
  const auto world = make_world(RankEnv{}, {.backend = BackendKind::loopback});
  EXPECT_EQ(world->group().size(), 1);
  check_collectives(world->group(), 100);
  world->close();
}

TEST(World, OfOneHasAMeshOfOnes) {
  const auto world = make_world(RankEnv{}, {.backend = BackendKind::loopback});
  MeshGroups groups(layout::Mesh({}, 1), world->group(), world.get());
  EXPECT_EQ(&groups.over(layout::kDataAxes), &world->group());
  groups.over(layout::Axis::pipe).barrier().wait();
}

TEST(World, RefusesLoopbackBetweenProcesses) {
  RankEnv env;
  env.world_size = 2;
  EXPECT_THROW(make_world(env, {.backend = BackendKind::loopback}), ConfigError);
}

TEST(World, RefusesNcclInAProgramWithoutIt) {
  EXPECT_THROW(make_world(RankEnv{}, {.backend = BackendKind::nccl}), ConfigError);
}

TEST(World, RefusesSeveralCpuRanksThatNoMpiLauncherStarted) {
  RankEnv env;
  env.world_size = 2;
  env.launcher = "torchrun";
  EXPECT_THROW(make_world(env), ConfigError);
}

}  // namespace
}  // namespace capstan::comm
