#include "capstan/engine/grad_gate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/engine/columns.h"

namespace capstan::engine {
namespace {

template <typename Value>
Value* device_data(const at::Tensor& tensor) {
  return static_cast<Value*>(tensor.mutable_data_ptr());
}

at::Tensor over_host(const device::HostBuffer& buffer) {
  return at::from_blob(buffer.data(), {buffer.bytes()}, at::kByte);
}

constexpr std::int64_t kFindingDoubles = sizeof(optim::GradFindings) / sizeof(double);

}  // namespace

void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

GradGate::GradGate(const shard::ShardedModel& model)
    : device_(model.device()),
      host_result_(sizeof(optim::GateResult), device::HostMemory::pinned),
      decided_(device_.type()) {
  std::vector<std::int32_t> params;
  for (const int unit : model.step_order()) {
    const shard::UnitSpec& spec = model.plan().units[static_cast<std::size_t>(unit)];
    for (const layout::SlotPiece& piece : spec.layout.pieces(model.group().rank())) {
      pieces_.push_back({.elems = piece.in_shard.size(), .first_block = work_.block_count});
      work_.block_count += optim::sum_block_count(piece.in_shard.size());
      params.push_back(spec.params[static_cast<std::size_t>(piece.slot)]);
    }
  }
  work_.piece_count = static_cast<std::int64_t>(pieces_.size());
  const auto on_device = [this](std::int64_t count, at::ScalarType dtype) {
    return at::empty({count}, at::TensorOptions(dtype).device(device_));
  };
  // At least one: there is no pinned memory of no bytes.
  const auto table_bytes = std::max<std::int64_t>(1, work_.piece_count) *
                           static_cast<std::int64_t>(sizeof(optim::SumPiece));
  host_table_ = device::HostBuffer(table_bytes, device::HostMemory::pinned);
  table_ = on_device(table_bytes, at::kByte);
  params_ = at::from_blob(params.data(), {work_.piece_count}, at::kInt).to(device_);
  blocks_ = on_device(work_.block_count, at::kDouble);
  sums_ = on_device(work_.piece_count, at::kDouble);
  findings_ = on_device(kFindingDoubles, at::kDouble);
  of_ranks_ = on_device(kFindingDoubles * model.group().size(), at::kDouble);
  result_ = on_device(sizeof(optim::GateResult), at::kByte);
  work_.pieces = device_data<optim::SumPiece>(table_);
  work_.blocks = device_data<double>(blocks_);
}

// Gradient shards are new memory in every step; the rest of the table stays.
void GradGate::fill_table(shard::ShardedModel& model) {
  std::size_t next = 0;
  for (const int unit : model.step_order()) {
    const shard::UnitSpec& spec = model.plan().units[static_cast<std::size_t>(unit)];
    const at::Tensor& grads = model.gradient_shard(unit);
    for (const layout::SlotPiece& piece : spec.layout.pieces(model.group().rank())) {
      pieces_[next++].column = const_column(grads, piece.in_shard.begin);
    }
  }
  std::memcpy(host_table_.data(), pieces_.data(), pieces_.size() * sizeof(optim::SumPiece));
  table_.copy_(over_host(host_table_), /*non_blocking=*/true);
}

void GradGate::start(shard::ShardedModel& model, const optim::GateRule& rule) {
  fill_table(model);
  const optim::CudaRun run{.stream = current_stream(device_)};
  optim::sum_squares(work_, device_data<double>(sums_), run);
  optim::find_in_sums(device_data<double>(sums_), device_data<std::int32_t>(params_),
                      work_.piece_count, device_data<optim::GradFindings>(findings_), run);
  model.group().all_gather(of_ranks_, findings_, "gradient norm").wait();
  optim::decide_gate(device_data<optim::GradFindings>(of_ranks_), model.group().size(), rule,
                     device_data<optim::GateResult>(result_), run);
  over_host(host_result_).copy_(result_, /*non_blocking=*/true);
  decided_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

const optim::StepGate* GradGate::gate() const {
  return &device_data<optim::GateResult>(result_)->gate;
}

GradNorm GradGate::finish(const comm::Group& group) {
  // Short enough to be back before the device runs out of work, long enough to leave the core.
  constexpr std::chrono::microseconds kPause{50};
  while (!decided_.query()) {
    group.check();
    std::this_thread::sleep_for(kPause);
  }
  optim::GateResult result;
  std::memcpy(&result, host_result_.data(), sizeof(result));
  GradNorm norm{.sum_norm = std::sqrt(result.all.squares)};
  if (result.all.first_bad >= 0) norm.non_finite = static_cast<int>(result.all.first_bad);
  return norm;
}

}  // namespace capstan::engine
