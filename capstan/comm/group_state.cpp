#include "capstan/comm/group_state.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "capstan/comm/tagged_backend.h"
#include "capstan/device/error_text.h"

namespace capstan::comm {
namespace {

using Clock = FlightRecorder::Clock;

// Past all that this thread has enqueued up to now.
c10::Event event_of_stream(const std::vector<at::Tensor>& buffers) {
  const c10::Device device = buffers.empty() ? c10::Device(c10::kCUDA) : buffers.front().device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event event(device.type());
  event.record(guard.getStream(device.has_index() ? device : guard.getDevice()));
  return event;
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
      options(std::move(options_in)),
      rank(backend->getRank()),
      size(backend->getSize()) {
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
  held->issued = Clock::now();
  {
    const std::lock_guard lock(mutex);
    held->number = recorder.issued(held->facts, held->issued);
  }
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

void GroupState::complete(InFlight& op) {
  const auto begin = Clock::now();
  {
    const std::lock_guard order(issue);
    if (op.second) {
      advance(op);
    }
  }
  wait_for_work(op);
  if (op.finish) {
    op.finish();
  }
  const auto end = Clock::now();
  count(op, begin, end);
  std::shared_ptr<const OpObserver> observed;
  {
    const std::lock_guard lock(mutex);
    observed = observer;
  }
  if (observed != nullptr) (*observed)(op.facts, end - op.issued);
}

void GroupState::count(const InFlight& op, Clock::time_point begin, Clock::time_point end) {
  const std::lock_guard lock(mutex);
  recorder.finished(op.number, end);
  OpCounter& counter = counters[op.facts.kind];
  ++counter.calls;
  counter.elems += op.facts.elems;
  counter.bytes += op.facts.elems * static_cast<std::int64_t>(c10::elementSize(op.facts.dtype));
  counter.time += end - op.issued;
  counter.blocked += end - begin;
}

void GroupState::wait_for_work(InFlight& op) {
  bool in_time = false;
  try {
    // NCCL orders our stream behind the operation. With a timeout it would hold the host up
    // instead, and all that could be enqueued meanwhile; there the watch sees to the timeout.
    const bool by_stream = op.watched && backend->getBackendName() == "nccl";
    in_time = by_stream ? op.work->wait() : op.work->wait(options.timeout);
    if (by_stream) op.watched.follow(event_of_stream(op.buffers));
    op.watched.release();
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
