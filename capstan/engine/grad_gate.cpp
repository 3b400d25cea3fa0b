#include "capstan/engine/grad_gate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/engine/columns.h"
#include "capstan/optim/column_ops.h"

namespace capstan::engine {
namespace {

template <typename Value>
Value* device_data(const at::Tensor& tensor) {
  return static_cast<Value*>(tensor.mutable_data_ptr());
}

// There is no pinned memory of no bytes.
device::HostBuffer pinned_bytes(std::size_t bytes) {
  return device::HostBuffer(static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64)),
                            device::HostMemory::pinned);
}

at::Tensor bytes_of(const device::HostBuffer& buffer, std::size_t begin, std::size_t bytes) {
  return at::from_blob(buffer.data() + begin, {static_cast<std::int64_t>(bytes)}, at::kByte);
}

// Elements [begin, end) of a table that both sides hold.
template <typename Value>
void send_rows(const at::Tensor& device, const device::HostBuffer& host, std::size_t begin,
               std::size_t end) {
  const std::size_t offset = begin * sizeof(Value);
  const std::size_t bytes = (end - begin) * sizeof(Value);
  device.view(at::kByte)
      .narrow(0, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(bytes))
      .copy_(bytes_of(host, offset, bytes), /*non_blocking=*/true);
}

constexpr std::int64_t kFindingDoubles = sizeof(optim::GradFindings) / sizeof(double);

}  // namespace

void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void GradGate::list_pieces(const shard::Plan& plan, const shard::ModelGroups& groups) {
  units_.resize(plan.units.size());
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const shard::UnitSpec& spec = plan.units[unit];
    UnitPieces& mine = units_[unit];
    mine.begin = mine.end = pieces_.size();
    if (!spec.trainable) continue;
    for (const layout::SlotPiece& piece :
         counted_pieces(plan, static_cast<int>(unit), groups.units[unit])) {
      mine.in_shard.push_back(piece.in_shard.begin);
      pieces_.push_back({.elems = piece.in_shard.size(), .first_block = block_count_});
      block_count_ += optim::sum_block_count(piece.in_shard.size());
      param_of_.push_back(ParamCode::of(stage_, spec.params[static_cast<std::size_t>(piece.slot)]));
    }
    mine.end = pieces_.size();
  }
}

GradGate::GradGate(const shard::Plan& plan, const shard::ModelGroups& groups, c10::Device device)
    : device_(device),
      stage_(groups.stage),
      host_result_(pinned_bytes(sizeof(optim::GateResult))),
      decided_(device_.type()) {
  list_pieces(plan, groups);
  const auto on_device = [this](std::size_t count, at::ScalarType dtype) {
    return at::empty({static_cast<std::int64_t>(count)}, at::TensorOptions(dtype).device(device_));
  };
  const std::size_t count = pieces_.size();
  host_table_ = pinned_bytes(count * sizeof(optim::SumPiece));
  host_sums_ = pinned_bytes(count * sizeof(double));
  table_ = on_device(count * sizeof(optim::SumPiece), at::kByte);
  params_ =
      at::from_blob(param_of_.data(), {static_cast<std::int64_t>(count)}, at::kInt).to(device_);
  blocks_ = on_device(static_cast<std::size_t>(block_count_), at::kDouble);
  sums_ = on_device(count, at::kDouble);
  findings_ = on_device(kFindingDoubles, at::kDouble);
  of_ranks_ = on_device(static_cast<std::size_t>(kFindingDoubles * groups.all.size()), at::kDouble);
  result_ = on_device(sizeof(optim::GateResult), at::kByte);
}

void GradGate::leaves(int unit, const at::Tensor& sum, bool alone) {
  UnitPieces& pieces = units_[static_cast<std::size_t>(unit)];
  pieces.summed = alone;
  if (!alone) return;
  point_at(pieces, sum);
  sum_on_device(pieces.begin, pieces.end);
}

void GradGate::point_at(UnitPieces& pieces, const at::Tensor& grads) {
  for (std::size_t i = pieces.begin; i < pieces.end; ++i) {
    pieces_[i].column = const_column(grads, pieces.in_shard[i - pieces.begin]);
  }
}

void GradGate::sum_on_device(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  std::memcpy(host_table_.data() + begin * sizeof(optim::SumPiece), pieces_.data() + begin,
              (end - begin) * sizeof(optim::SumPiece));
  send_rows<optim::SumPiece>(table_, host_table_, begin, end);
  const std::int64_t first = pieces_[begin].first_block;
  const std::int64_t last = end < pieces_.size() ? pieces_[end].first_block : block_count_;
  optim::sum_squares({.pieces = device_data<optim::SumPiece>(table_) + begin,
                      .piece_count = static_cast<std::int64_t>(end - begin),
                      .first_block = first,
                      .block_count = last - first,
                      .blocks = device_data<double>(blocks_)},
                     device_data<double>(sums_) + begin, {.stream = current_stream(device_)});
}

void GradGate::sum_on_host(UnitPieces& pieces, const at::Tensor& grads, const optim::CpuRun& run) {
  auto* const sums = reinterpret_cast<double*>(host_sums_.data());
  for (std::size_t i = pieces.begin; i < pieces.end; ++i) {
    sums[i] = optim::sum_squares(const_column(grads, pieces.in_shard[i - pieces.begin]),
                                 pieces_[i].elems, run);
  }
  if (pieces.begin < pieces.end) send_rows<double>(sums_, host_sums_, pieces.begin, pieces.end);
}

void GradGate::start(shard::ShardedModel& model, const optim::GateRule& rule,
                     const optim::CpuRun& run) {
  // Neighbours on the device are summed by one launch.
  std::size_t begin = 0;
  std::size_t end = 0;
  for (const int unit : model.step_order()) {
    UnitPieces& pieces = units_[static_cast<std::size_t>(unit)];
    const at::Tensor& grads = model.gradients().shard(unit);
    if (grads.device() == device_) {
      point_at(pieces, grads);
      if (begin == end) begin = pieces.begin;
      end = pieces.end;
    } else {
      sum_on_device(begin, end);
      begin = end;
      if (!pieces.summed) sum_on_host(pieces, grads, run);
    }
    pieces.summed = false;
  }
  sum_on_device(begin, end);
  const optim::CudaRun on_stream{.stream = current_stream(device_)};
  optim::find_in_sums(device_data<double>(sums_), device_data<std::int32_t>(params_),
                      static_cast<std::int64_t>(pieces_.size()),
                      device_data<optim::GradFindings>(findings_), on_stream);
  model.group().all_gather(of_ranks_, findings_, "gradient norm").wait();
  optim::decide_gate(device_data<optim::GradFindings>(of_ranks_), model.group().size(), rule,
                     device_data<optim::GateResult>(result_), on_stream);
  bytes_of(host_result_, 0, sizeof(optim::GateResult)).copy_(result_, /*non_blocking=*/true);
  decided_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

const optim::StepGate* GradGate::gate() const {
  return &device_data<optim::GateResult>(result_)->gate;
}

GradNorm GradGate::finish(const comm::Group& group) {
  const profile::Span waiting(group.recorder().get(),
                              {.name = "gradient norm", .kind = profile::Kind::wait});
  // Short enough to be back before the device runs out of work, long enough to leave the core.
  constexpr std::chrono::microseconds kPause{50};
  while (!decided_.query()) {
    group.check();
    std::this_thread::sleep_for(kPause);
  }
  optim::GateResult result;
  std::memcpy(&result, host_result_.data(), sizeof(result));
  GradNorm norm{.sum_norm = std::sqrt(result.all.squares)};
  if (result.all.first_bad >= 0) {
    norm.set_bad(static_cast<std::int32_t>(result.all.first_bad), stage_);
  }
  return norm;
}

}  // namespace capstan::engine
