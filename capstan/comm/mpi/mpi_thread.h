// The one thread of a process that makes MPI calls. Private to comm/mpi.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capstan/comm/mpi/mpi.h"
#include "capstan/comm/mpi/mpi_notes.h"
#include "capstan/comm/mpi/mpi_op.h"
#include "capstan/comm/mpi/mpi_requests.h"

namespace capstan::comm {

// What the thread works on. Kept alive by the thread itself: when a dead peer has left it inside an
// MPI call for good, it is abandoned, and this with it.
// Threads: submit(), abort(), stop() from any; the rest is the thread's own.
class MpiWorker {
 public:
  explicit MpiWorker(MpiOptions options) : options_(options) {}

  // The thread's body. `started` is called once: rank, size, or the error of MPI_Init.
  struct Start {
    int rank = 0;
    int size = 0;
    int largest_tag = 0;
    std::string error;  // empty: MPI is running
  };
  void run(const std::function<void(const Start&)>& started);

  void submit(std::unique_ptr<MpiOp> op);
  // Ends the group's operations here and tells its peers; returns when they have been told, or
  // after a moment when they cannot be.
  void abort(std::shared_ptr<MpiGroup> group, std::string reason);
  // Ends the thread. With `finalize`, and unless a group has failed, MPI_Finalize is called.
  void stop(bool finalize);
  // Groups that notes from peers may name.
  void add_group(std::shared_ptr<MpiGroup> group);

 private:
  struct Abort {
    std::shared_ptr<MpiGroup> group;
    std::string reason;
  };

  Start start_mpi_library();
  void loop();
  void take_commands();
  bool advance_operations();
  bool advance(MpiOp& op);
  void start(MpiOp& op);
  void fail_group(MpiGroup& group, const std::string& reason);
  void tell_peers(MpiGroup& group, const std::string& reason);
  void watch_for_stalls(MpiClock::time_point now);
  void ask_peers(MpiOp& op, MpiClock::time_point now);
  void read_notes();
  void answer(const Note& note);
  void rest(bool progressed);

  const MpiOptions options_;

  std::mutex mutex_;  // guards the commands
  std::condition_variable changed_;
  std::deque<std::unique_ptr<MpiOp>> submitted_;
  std::deque<Abort> aborts_;
  std::vector<std::shared_ptr<MpiGroup>> groups_;
  std::map<int, std::string> early_aborts_;  // by group, of groups that this rank has yet to make
  std::int64_t aborts_asked_ = 0;
  std::int64_t aborts_done_ = 0;
  std::condition_variable abort_done_;
  bool stopping_ = false;
  bool finalize_ = false;

  // The thread's own:
  std::unique_ptr<MpiRequests> requests_;
  std::unique_ptr<MpiNotes> notes_;
  std::vector<std::unique_ptr<MpiOp>> active_;  // in the order of their issue
  MpiClock::time_point last_progress_;
  MpiClock::time_point last_watch_;
  bool any_failure_ = false;
  bool initialized_here_ = false;
};

}  // namespace capstan::comm
