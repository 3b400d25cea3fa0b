#include "capstan/comm/group_state.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "capstan/comm/tagged_backend.h"
#include "capstan/device/error_text.h"
#include "capstan/profile/event_clock.h"

namespace capstan::comm {
namespace {

using Clock = FlightRecorder::Clock;

// That an operation of NCCL runs on.
c10::Device device_of(const std::vector<at::Tensor>& buffers) {
  return buffers.empty() ? c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice()
                         : buffers.front().device();
}

// Past all that this thread has enqueued up to now.
c10::Event event_of_stream(const std::vector<at::Tensor>& buffers) {
  const c10::Device device = device_of(buffers);
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

profile::Kind kind_of(OpKind kind) {
  switch (kind) {
    case OpKind::all_gather:
    case OpKind::broadcast:
      return profile::Kind::gather;
    case OpKind::reduce_scatter:
    case OpKind::all_reduce:
      return profile::Kind::reduce;
    default:
      return profile::Kind::exchange;
  }
}

// False: it cannot. From here on.
bool times_work(c10d::Backend& backend) {
  try {
    backend.enableCollectivesTiming();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

GroupOptions with_recorder(GroupOptions options) {
  if (options.recorder == nullptr) options.recorder = profile::make_recorder();
  return options;
}

// Gloo ends the program where messages of unequal size meet.
c10::intrusive_ptr<c10d::Backend> with_tags(c10::intrusive_ptr<c10d::Backend> backend,
                                            const std::string& name) {
  if (backend->getBackendName() != "gloo") return backend;
  return c10::make_intrusive<TaggedBackend>(std::move(backend), name);
}

constexpr const char* kFix =
    "compare the last operations of all ranks: the first one that differs, or the rank that "
    "stopped early, is the cause; see that rank's own error. All ranks must call the same modules "
    "in the same order and take the same number of steps. If a peer is only slow, raise the "
    "timeout";

}  // namespace

GroupState::GroupState(c10::intrusive_ptr<c10d::Backend> backend_in, GroupOptions options_in)
    : backend(with_tags(std::move(backend_in), options_in.name)),
      own(dynamic_cast<OwnBackend*>(backend.get())),
      options(with_recorder(std::move(options_in))),
      rank(backend->getRank()),
      size(backend->getSize()),
      over_nccl(backend->getBackendName() == "nccl") {
  if (options.side_channel == nullptr) return;
  // Over our own backends an operation tells its end only when it is waited for, with a timeout.
  Watch::Place place{rank, size, options.timeout};
  if (own != nullptr) place.timeout = std::chrono::milliseconds::max();
  watch.emplace(options.side_channel, place, [this](const std::string& reason) { abort(reason); });
}

PendingOp GroupState::run(InFlight op, const std::function<WorkPtr()>& start) {
  process.check("a group of ranks");
  auto held = std::make_unique<InFlight>(std::move(op));
  const std::lock_guard order(issue);
  if (unfinished_chain != nullptr) {
    advance(*unfinished_chain);
  }
  refuse_if_failed(held->facts);
  {
    const std::lock_guard lock(mutex);
    held->number = recorder.issued(held->facts, Clock::now());
  }
  open_span(*held);
  if (own != nullptr) {
    own->announce(held->facts);
  }
  try {
    held->work = start();
  } catch (const std::exception& error) {
    fail(*held, device::reason_of(error));
  }
  const bool to_peer = held->facts.kind == OpKind::send || held->facts.kind == OpKind::recv;
  if (watch && !to_peer) {
    held->watched = watch->add(held->facts, *held->work);
  } else if (watch && !over_nccl) {
    held->watched = watch->add_to_peer(*held->work);
  }
  if (held->second) {
    unfinished_chain = held.get();
  }
  return PendingOp(std::move(held));
}

void GroupState::advance(InFlight& op) {
  unfinished_chain = nullptr;
  const auto second = std::move(op.second);
  op.second = nullptr;
  wait_for_work(op);
  if (own != nullptr) {
    own->announce(op.facts);
  }
  try {
    op.work = second();
  } catch (const std::exception& error) {
    fail(op, device::reason_of(error));
  }
}

profile::SpanFacts GroupState::span_facts(const InFlight& op, profile::Kind kind) const {
  return {.name = to_string(op.facts.kind),
          .unit = op.facts.label.text(),
          .kind = kind,
          .bytes = payload_bytes(op.facts),
          .device = over_nccl ? profile::index_of(device_of(op.buffers)) : profile::kHost};
}

void GroupState::open_span(InFlight& op) {
  const profile::Kind kind = kind_of(op.facts.kind);
  if (!options.recorder->records(kind)) {
    last_times = nullptr;
    return;
  }
  profile::SpanFacts facts = span_facts(op, kind);
  if (over_nccl && times_work(*backend)) {
    op.times = std::make_shared<OpTimes>(options.recorder->clock(), facts.device,
                                         std::exchange(last_times, nullptr));
    last_times = op.times;
  }
  OpFacts unlabelled = op.facts;
  unlabelled.label = {};
  const std::string detail = to_text(unlabelled);
  facts.detail = detail;
  op.span = profile::Span(options.recorder.get(), facts, op.times);
}

void GroupState::complete(InFlight& op) {
  const profile::Span waiting(options.recorder.get(), span_facts(op, profile::Kind::wait));
  {
    const std::lock_guard order(issue);
    if (op.second) {
      advance(op);
    }
  }
  wait_for_work(op);
  if (op.times != nullptr) op.times->end();
  if (op.finish) {
    op.finish();
  }
  op.span.end();
  count(op);
}

void GroupState::count(const InFlight& op) {
  const std::lock_guard lock(mutex);
  recorder.finished(op.number, Clock::now());
  OpCounter& counter = counters[op.facts.kind];
  ++counter.calls;
  counter.elems += op.facts.elems;
  counter.bytes += payload_bytes(op.facts);
}

void GroupState::wait_for_work(InFlight& op) {
  bool in_time = false;
  try {
    // NCCL orders our stream behind the operation. With a timeout it would hold the host up
    // instead, and all that could be enqueued meanwhile; there the watch sees to the timeout.
    const bool by_stream = op.watched && over_nccl;
    in_time = by_stream ? op.work->wait() : op.work->wait(options.timeout);
    if (by_stream) op.watched.follow(event_of_stream(op.buffers));
    op.watched.release();
    if (op.times != nullptr) op.times->add(op.work);
  } catch (const std::exception& error) {
    fail(op, device::reason_of(error));
  }
  if (!in_time) {
    fail(op, fmt::format("rank {}: {} did not finish within {:.1f} s", rank, to_text(op.facts),
                         std::chrono::duration<double>(options.timeout).count()));
  }
}

void GroupState::fail(const InFlight& op, std::string why) {
  // The rank that gives up first need not be the one that waits for the cause; each adds what it
  // sees itself.
  const std::string seen = own != nullptr ? own->explain_stall() : "";
  if (!seen.empty() && why.find(seen) == std::string::npos) {
    why += fmt::format("; rank {} sees: {}", rank, seen);
  }
  std::string text = why;
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) text = failure;  // what came first explains the rest
    text += fmt::format("\nlast operations of rank {} of {} in group '{}':\n{}", rank, size,
                        options.name, recorder.text(Clock::now()));
    text.pop_back();
  }
  abort(why);
  throw CommError({.what = text,
                   .where = fmt::format("group '{}', rank {} of {}, operation #{}: {}",
                                        options.name, rank, size, op.number, to_text(op.facts)),
                   .fix = kFix});
}

void GroupState::refuse_if_failed(const OpFacts& facts) {
  const std::lock_guard lock(mutex);
  if (failure.empty() && !closed) {
    return;
  }
  throw CommError({.what = closed ? "the group is closed"
                                  : "the group is unusable since an earlier failure: " + failure,
                   .where = fmt::format("group '{}', rank {} of {}: {}", options.name, rank, size,
                                        to_text(facts)),
                   .fix = "create a new group; after a failure, restart the ranks"});
}

void GroupState::abort(std::string_view reason) {
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) {
      return;
    }
    failure = reason;
  }
  if (watch) watch->give_up(std::string(reason));
  if (own != nullptr) {
    own->abort_with(reason);
  } else {
    backend->abort();
  }
}

}  // namespace capstan::comm
