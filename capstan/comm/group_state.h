// What a Group and its operations in flight share. Private to comm.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "capstan/base/own_process.h"
#include "capstan/comm/buffer_pool.h"
#include "capstan/comm/flight_recorder.h"
#include "capstan/comm/group.h"
#include "capstan/comm/op_times.h"
#include "capstan/comm/own_backend.h"
#include "capstan/comm/watch.h"

namespace capstan::comm {

struct InFlight {
  std::shared_ptr<GroupState> group;
  OpFacts facts;
  std::int64_t number = 0;
  profile::Span span;
  std::shared_ptr<OpTimes> times;   // null: the host's are right, or nobody reads them
  WorkPtr work;                     // the part in flight
  Watch::Ticket watched;            // goes before the work; empty: not watched
  std::vector<at::Tensor> buffers;  // alive until the operation is done
  // A second exchange that depends on the first one's result (all_reduce): given that the first is
  // done, issues it. Runs once, before any later operation is issued, so that the order of
  // exchanges is the same on every rank whatever the order of waits.
  std::function<WorkPtr()> second;
  std::function<void()> finish;  // local work after the last exchange; may be empty
};

// Threads: `issue` is held while operations are started (and while a first exchange is waited for);
//          `mutex` guards the rest, for moments only. `issue` is taken before `mutex`.
struct GroupState {
  GroupState(c10::intrusive_ptr<c10d::Backend> backend, GroupOptions options);

  // Starts an operation: `start` issues it on the backend. Throws CommError when the group has
  // failed or is closed.
  PendingOp run(InFlight op, const std::function<WorkPtr()>& start);
  // Waits for `op` to its very end; counts and records it.
  void complete(InFlight& op);
  void count(const InFlight& op);
  // Spans of an operation that starts, and of the wait for it.
  void open_span(InFlight& op);
  profile::SpanFacts span_facts(const InFlight& op, profile::Kind kind) const;
  // Issues the second exchange of `op` if it has one left. Call with `issue` held.
  void advance(InFlight& op);

  // Waits for op.work; turns whatever it throws into a CommError that poisons the group.
  void wait_for_work(InFlight& op);
  [[noreturn]] void fail(const InFlight& op, std::string why);
  void refuse_if_failed(const OpFacts& facts);
  void abort(std::string_view reason);

  const c10::intrusive_ptr<c10d::Backend> backend;
  OwnBackend* const own;  // null for a backend of someone else's; same lifetime as backend
  const GroupOptions options;
  const int rank;
  const int size;
  const bool over_nccl;
  const OwnProcess process;
  BufferPool buffers;

  std::mutex issue;
  InFlight* unfinished_chain = nullptr;  // has `second` left; guarded by issue
  std::shared_ptr<OpTimes> last_times;   // of the last one recorded; guarded by issue

  std::mutex mutex;
  Counters counters;
  FlightRecorder recorder;
  std::string failure;  // empty: usable
  bool closed = false;

  std::optional<Watch> watch;                      // its thread ends before what it uses
  std::vector<std::unique_ptr<InFlight>> dropped;  // last: under watch to their end
};

}  // namespace capstan::comm
