#include "capstan/comm/mpi/mpi_thread.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Signals are for the program's own threads.
void leave_signals_to_others() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

std::exception_ptr mpi_failure(const MpiGroup& group, const std::string& reason) {
  return std::make_exception_ptr(
      CommError({.what = reason,
                 .where = fmt::format("mpi, group '{}', rank {}", group.name, group.rank),
                 .fix = "see the error of the rank named first"}));
}

}  // namespace

void MpiWorker::run(const std::function<void(const Start&)>& started) {
  leave_signals_to_others();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // our naps are of some 20 us; the default adds 50
  const Start start = start_mpi_library();
  started(start);
  if (!start.error.empty()) {
    return;
  }
  loop();
  if (finalize_ && !any_failure_) {
    notes_->close();
    if (initialized_here_) {
      MPI_Finalize();
    }
  }
}

MpiWorker::Start MpiWorker::start_mpi_library() {
  int running = 0;
  int finalized = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&running);
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return {.error = "MPI has been finalized in this process"};
  }
  if (running != 0) {
    MPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE) {
      return {.error = "MPI is in use in this process without MPI_THREAD_MULTIPLE"};
    }
  } else {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
      return {.error = "MPI_Init_thread failed"};
    }
    initialized_here_ = true;
  }
  MPI_Comm operations = MPI_COMM_NULL;
  MPI_Comm notes = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &operations);
  MPI_Comm_dup(MPI_COMM_WORLD, &notes);
  for (const MPI_Comm comm : {operations, notes}) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  requests_ = std::make_unique<MpiRequests>(operations);
  notes_ = std::make_unique<MpiNotes>(notes);
  Start start;
  MPI_Comm_rank(operations, &start.rank);
  MPI_Comm_size(operations, &start.size);
  int* largest_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(operations, MPI_TAG_UB, static_cast<void*>(&largest_tag), &known);
  start.largest_tag = known != 0 ? *largest_tag : 32767;  // what the standard guarantees
  return start;
}

void MpiWorker::submit(std::unique_ptr<MpiOp> op) {
  {
    const std::lock_guard lock(mutex_);
    submitted_.push_back(std::move(op));
  }
  changed_.notify_one();
}

void MpiWorker::abort(std::shared_ptr<MpiGroup> group, std::string reason) {
  std::unique_lock lock(mutex_);
  aborts_.push_back({std::move(group), std::move(reason)});
  const std::int64_t asked = ++aborts_asked_;
  changed_.notify_one();
  abort_done_.wait_for(lock, milliseconds(500), [&] { return aborts_done_ >= asked; });
}

void MpiWorker::stop(bool finalize) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    finalize_ = finalize;
  }
  changed_.notify_one();
}

void MpiWorker::add_group(std::shared_ptr<MpiGroup> group) {
  const std::lock_guard lock(mutex_);
  const auto aborted = early_aborts_.find(group->id);
  if (aborted != early_aborts_.end()) {
    const std::lock_guard group_lock(group->mutex);
    group->failure = aborted->second;
  }
  groups_.push_back(std::move(group));
}

void MpiWorker::loop() {
  last_progress_ = last_watch_ = MpiClock::now();
  while (true) {
    take_commands();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && submitted_.empty() && aborts_.empty() &&
          (active_.empty() || any_failure_ || !finalize_)) {
        return;
      }
    }
    const bool moved = requests_->progress();
    const bool progressed = advance_operations() || moved;
    read_notes();
    rest(progressed);
  }
}

void MpiWorker::take_commands() {
  std::deque<std::unique_ptr<MpiOp>> submitted;
  std::deque<Abort> aborts;
  {
    const std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    aborts.swap(aborts_);
  }
  for (auto& op : submitted) {
    active_.push_back(std::move(op));
  }
  for (const Abort& abort : aborts) {
    fail_group(*abort.group, abort.reason);
    tell_peers(*abort.group, abort.reason);
    const std::lock_guard lock(mutex_);
    ++aborts_done_;
    abort_done_.notify_all();
  }
}

bool MpiWorker::advance_operations() {
  bool any = false;
  for (auto& op : active_) {
    any = advance(*op) || any;
  }
  std::erase_if(active_, [](const std::unique_ptr<MpiOp>& op) {
    return op->quiet() && (op->failed || op->work->isCompleted());
  });
  return any;
}

// True when something changed.
bool MpiWorker::advance(MpiOp& op) {
  if (op.failed || op.work->isCompleted()) {
    return false;
  }
  if (!op.started) {
    if (op.staging && !op.staging->inputs_ready()) {
      return false;
    }
    start(op);
    return true;
  }
  const bool summed = op.damage.empty() && op.sum && op.sum->advance();
  const auto posted = op.next;
  requests_->post(op);
  if (!op.all_moved() || (op.sum && !op.sum->done()) || !op.damage.empty()) {
    return summed || op.next != posted;
  }
  if (op.staging && !op.copying_back) {
    op.copying_back = true;
    op.staging->start_outputs();
  }
  if (op.staging && !op.staging->outputs_ready()) {
    return false;
  }
  // Let go first: when the owner sees the end, nobody else holds its buffers.
  op.tensors.clear();
  op.sum.reset();
  op.staging.reset();
  op.work->complete();
  return true;
}

void MpiWorker::start(MpiOp& op) {
  op.started = true;
  {
    const std::lock_guard lock(op.group->mutex);
    if (!op.group->failure.empty()) {
      op.failed = true;
      op.work->fail(mpi_failure(*op.group, op.group->failure));
      return;
    }
  }
  if (op.number > 0) {
    op.group->collectives.add(op.number, op.facts);
  } else {
    op.group->pairs[{op.facts.kind, op.facts.peer}].add(-op.number, op.facts);
  }
  requests_->post(op);
  const LocalCopy& own = op.plan.local;
  if (own.bytes > 0 && own.to != own.from) {
    std::memcpy(own.to, own.from, own.bytes);
  }
}

void MpiWorker::fail_group(MpiGroup& group, const std::string& reason) {
  any_failure_ = true;
  {
    const std::lock_guard lock(group.mutex);
    if (group.failure.empty()) group.failure = reason;
  }
  for (auto& op : active_) {
    if (op->group.get() == &group && !op->failed && !op->work->isCompleted()) {
      op->failed = true;
      op->work->fail(mpi_failure(group, reason));
    }
  }
}

// Naps grow with the time since anything moved: latency while transfers run, no load while a slow
// peer computes. A new command ends the nap.
void MpiWorker::rest(bool progressed) {
  const auto now = MpiClock::now();
  if (progressed) {
    last_progress_ = now;
    return;
  }
  if (now - last_watch_ > milliseconds(100)) {
    last_watch_ = now;
    watch_for_stalls(now);
  }
  const auto quiet = now - last_progress_;
  if (quiet < microseconds(100) && !active_.empty()) {
    std::this_thread::yield();
    return;
  }
  auto nap = microseconds(20);
  if (quiet > milliseconds(5)) nap = microseconds(100);
  if (quiet > milliseconds(100)) nap = microseconds(500);
  if (active_.empty()) {
    // Nothing of ours is in flight; messages that the library still buffers need a push now and
    // then, and a peer may ask where we are.
    nap = quiet < milliseconds(20) ? microseconds(500) : microseconds(50'000);
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, nap,
                    [this] { return !submitted_.empty() || !aborts_.empty() || stopping_; });
}

}  // namespace capstan::comm
