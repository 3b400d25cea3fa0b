// The MPI requests in flight. Private to comm/mpi; MPI thread only.
#pragma once

#include <mpi.h>

#include <vector>

#include "capstan/comm/mpi/mpi_op.h"

namespace capstan::comm {

class MpiRequests {
 public:
  explicit MpiRequests(MPI_Comm comm) : comm_(comm) {}

  bool empty() const { return requests_.empty(); }
  // Posts as many of op's transfers as may be in flight: one stage, a window of messages.
  void post(MpiOp& op);
  // Tests all; counts completed transfers off their operations. True when there were any.
  bool progress();
  // The peers (ranks in the group) whose messages op waits for, ascending.
  std::vector<int> peers_of(const MpiOp& op) const;

 private:
  struct Entry {
    MpiOp* op;
    Transfer transfer;
  };
  void post(MpiOp& op, Direction direction);
  void complete(std::size_t index, const MPI_Status& status, int error);

  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;  // parallel to entries_
  std::vector<Entry> entries_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace capstan::comm
