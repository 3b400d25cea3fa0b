#include "capstan/comm/group.h"

#include <fmt/format.h>

#include "capstan/comm/group_check.h"
#include "capstan/comm/group_state.h"

namespace capstan::comm {

Group::Group(const c10::intrusive_ptr<c10d::Backend>& backend, GroupOptions options)
    : state_(std::make_shared<GroupState>(backend, std::move(options))) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

int Group::rank() const { return state_->rank; }
int Group::size() const { return state_->size; }
const std::string& Group::name() const { return state_->options.name; }
c10d::Backend& Group::backend() const { return *state_->backend; }
const std::shared_ptr<profile::Recorder>& Group::recorder() const {
  return state_->options.recorder;
}

PendingOp Group::all_gather(at::Tensor whole, at::Tensor mine, std::string_view label) {
  const OpFacts facts = describe(OpKind::all_gather, whole, label);
  check_tensor(*state_, facts, whole);
  check_tensor(*state_, facts, mine);
  if (whole.numel() != mine.numel() * size() || whole.scalar_type() != mine.scalar_type()) {
    refuse(*state_, facts,
           fmt::format("whole has {} {}, but {} ranks x {} {} are gathered", whole.numel(),
                       dtype_name(whole.scalar_type()), size(), mine.numel(),
                       dtype_name(mine.scalar_type())));
  }
  return state_->run({.group = state_, .facts = facts, .buffers = {whole, mine}},
                     [&] { return state_->backend->_allgather_base(whole, mine); });
}

PendingOp Group::broadcast(at::Tensor tensor, int root, std::string_view label) {
  const OpFacts facts = describe(OpKind::broadcast, tensor, label, root);
  check_tensor(*state_, facts, tensor);
  if (root < 0 || root >= size()) {
    refuse(*state_, facts, fmt::format("root is {}, but the ranks are 0 to {}", root, size() - 1));
  }
  return state_->run({.group = state_, .facts = facts, .buffers = {tensor}}, [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions how;
    how.rootRank = root;
    return state_->backend->broadcast(tensors, how);
  });
}

PendingOp Group::all_to_all(at::Tensor received, at::Tensor sent, std::string_view label) {
  const OpFacts facts = describe(OpKind::all_to_all, sent, label);
  check_tensor(*state_, facts, received);
  check_tensor(*state_, facts, sent);
  if (received.numel() != sent.numel() || received.scalar_type() != sent.scalar_type() ||
      sent.numel() % size() != 0) {
    refuse(*state_, facts,
           fmt::format("{} {} are sent and {} {} received; both must be equal and a multiple of {}",
                       sent.numel(), dtype_name(sent.scalar_type()), received.numel(),
                       dtype_name(received.scalar_type()), size()));
  }
  return state_->run({.group = state_, .facts = facts, .buffers = {received, sent}}, [&] {
    std::vector<std::int64_t> equal;
    return state_->backend->alltoall_base(received, sent, equal, equal);
  });
}

PendingOp Group::send(at::Tensor tensor, int to, std::string_view label) {
  const OpFacts facts = describe(OpKind::send, tensor, label, to);
  check_tensor(*state_, facts, tensor);
  check_peer(*state_, facts);
  return state_->run({.group = state_, .facts = facts, .buffers = {tensor}}, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return state_->backend->send(tensors, to, /*tag=*/0);
  });
}

PendingOp Group::recv(at::Tensor tensor, int from, std::string_view label) {
  const OpFacts facts = describe(OpKind::recv, tensor, label, from);
  check_tensor(*state_, facts, tensor);
  check_peer(*state_, facts);
  return state_->run({.group = state_, .facts = facts, .buffers = {tensor}}, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return state_->backend->recv(tensors, from, /*tag=*/0);
  });
}

PendingOp Group::barrier(std::string_view label) {
  return state_->run({.group = state_, .facts = describe(OpKind::barrier, {}, label)},
                     [&] { return state_->backend->barrier(); });
}

Counters Group::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

void Group::reset_counters() {
  const std::lock_guard lock(state_->mutex);
  state_->counters = {};
}

std::string Group::recent_operations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->recorder.text(FlightRecorder::Clock::now());
}

std::int64_t Group::buffers_made() const { return state_->buffers.made(); }

bool Group::failed() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->failure.empty();
}

void Group::check() const {
  if (failed()) state_->refuse_if_failed(describe(OpKind::barrier, {}, "wait for the device"));
}

int Group::close() {
  std::vector<std::unique_ptr<InFlight>> dropped;
  {
    const std::lock_guard lock(state_->mutex);
    dropped = std::move(state_->dropped);
    state_->dropped.clear();
    if (!state_->failure.empty()) {
      return static_cast<int>(dropped.size());  // their works have failed already
    }
  }
  for (const auto& op : dropped) {
    state_->complete(*op);
  }
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  return static_cast<int>(dropped.size());
}

void Group::abort(std::string_view reason) {
  state_->abort(fmt::format("rank {} aborted the group: {}", rank(), reason));
}

}  // namespace capstan::comm
