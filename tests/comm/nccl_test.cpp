#include "capstan/comm/nccl/nccl.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/comm/world.h"
#include "capstan/device/facts.h"
#include "tests/support/comm_cases.h"

namespace capstan::comm {
namespace {

TEST(Nccl, IsRefusedWithAReasonWhereARankHasNoGpuOfItsOwn) {
  RankEnv env;
  env.local_rank = 1000;
  env.local_world_size = 1001;
  EXPECT_THROW(start_nccl(env, std::chrono::seconds(1)), ConfigError);
}

// One GPU makes a world of one: NCCL refuses two ranks on one card.
TEST(Nccl, GetsEveryCollectiveRightOrderedAndNative) {
  if (device::list_devices().empty()) {
    GTEST_SKIP() << "no GPU: " << device::why_no_devices();
  }
  for (const bool ordered : {true, false}) {
    const auto world = make_world(
        RankEnv{}, {.backend = BackendKind::nccl, .reduce_in_rank_order = ordered}, start_nccl);
    EXPECT_EQ(world->backend(), BackendKind::nccl);
    for (const std::int64_t n : {1, 1000, 40'001}) {
      check_collectives(world->group(), n, at::Device(at::kCUDA, 0));
    }
    world->close();
  }
}

// Matrices, since a kernel that sleeps needs libraries that a program for CPU ranks does not load.
void keep_the_stream_busy(const at::Tensor& matrix) {
  for (int i = 0; i < 200; ++i) at::mm(matrix, matrix);
}

TEST(Nccl, RecordsHowLongTheDeviceIsAtAnOperationNotHowLongItWaits) {
  if (device::list_devices().empty()) {
    GTEST_SKIP() << "no GPU: " << device::why_no_devices();
  }
  const auto world = make_world(RankEnv{}, {.backend = BackendKind::nccl}, start_nccl);
  Group& group = world->group();
  const auto options = at::TensorOptions(at::kFloat).device(at::kCUDA, 0);
  const at::Tensor matrix = at::ones({4096, 4096}, options);
  const at::Tensor mine = at::ones({1 << 24}, options);
  const at::Tensor whole = at::zeros({1 << 24}, options);
  group.all_gather(whole, mine).wait();  // connects
  keep_the_stream_busy(matrix);
  profile::Reader reader(group.recorder(), profile::Kinds::all());
  const auto device_of = [](profile::Kind kind, const std::vector<profile::Record>& records) {
    for (const profile::Record& record : records) {
      if (record.kind == kind) return record.device;
    }
    return profile::DeviceTime{};
  };
  PendingOp gather;
  {
    const profile::Span busy(group.recorder().get(),
                             {.name = "busy", .kind = profile::Kind::phase, .device = 0});
    gather = group.all_gather(whole, mine, "unit");
    keep_the_stream_busy(matrix);
  }
  gather.wait();
  group.reduce_scatter(mine, whole).wait();
  group.recorder()->settle();
  const std::vector<profile::Record> records = reader.take();
  const profile::DeviceTime op = device_of(profile::Kind::gather, records);
  const profile::DeviceTime busy = device_of(profile::Kind::phase, records);
  EXPECT_GT(op.length.count(), 0);
  EXPECT_LT(op.length, busy.length);  // it was over long before anybody waited
  EXPECT_LT(op.begin, busy.begin + busy.length);
  EXPECT_GT(device_of(profile::Kind::reduce, records).length.count(), 0);
  EXPECT_GT(device_of(profile::Kind::compute, records).length.count(), 0);  // the local sum
  world->close();
}

}  // namespace
}  // namespace capstan::comm
