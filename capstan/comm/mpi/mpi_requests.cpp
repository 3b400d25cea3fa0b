#include "capstan/comm/mpi/mpi_requests.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace capstan::comm {
namespace {

// Enough to keep a link busy; few enough that thousands of ranks do not flood each other.
constexpr int kWindow = 32;

std::string mpi_error_text(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

void MpiRequests::post(MpiOp& op) {
  // Receives first: a message that finds its receive posted needs no buffer.
  post(op, Direction::recv);
  post(op, Direction::send);
}

void MpiRequests::post(MpiOp& op, Direction direction) {
  const auto& transfers = op.plan.transfers;
  std::size_t& next = op.next[static_cast<int>(direction)];
  int& in_flight = op.in_flight[static_cast<int>(direction)];
  for (; next < transfers.size() && !op.failed; ++next) {
    const Transfer& transfer = transfers[next];
    if (transfer.direction != direction) {
      continue;
    }
    const bool has_room = transfer.segment < 0 || op.sum->may_receive(transfer.segment);
    if (transfer.stage > op.stage || in_flight >= kWindow || !has_room) {
      return;
    }
    const int peer = op.group->world_ranks[transfer.peer];
    const auto count = static_cast<int>(transfer.bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    const auto send = transfer.until_received ? MPI_Issend : MPI_Isend;
    const int error =
        direction == Direction::send
            ? send(transfer.memory, count, MPI_BYTE, peer, op.tag, comm_, &request)
            : MPI_Irecv(transfer.memory, count, MPI_BYTE, peer, op.tag, comm_, &request);
    if (error != MPI_SUCCESS) {
      op.damage = fmt::format("a message of {} bytes {} rank {} could not be started: {}",
                              transfer.bytes, direction == Direction::send ? "to" : "from",
                              transfer.peer, mpi_error_text(error));
      return;
    }
    ++in_flight;
    requests_.push_back(request);
    entries_.push_back({&op, transfer});
  }
}

bool MpiRequests::progress() {
  if (requests_.empty()) {
    return false;
  }
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int done = 0;
  const int result = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done,
                                  indices_.data(), statuses_.data());
  if (done == MPI_UNDEFINED || done <= 0) {
    return false;
  }
  for (int i = 0; i < done; ++i) {
    // Only with MPI_ERR_IN_STATUS are the statuses' error fields set.
    complete(indices_[i], statuses_[i],
             result == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS);
  }
  // From the last to the first, so that the order of what remains is kept cheap and simple.
  std::sort(indices_.begin(), indices_.begin() + done, std::greater<>());
  for (int i = 0; i < done; ++i) {
    requests_[indices_[i]] = requests_.back();
    requests_.pop_back();
    entries_[indices_[i]] = entries_.back();
    entries_.pop_back();
  }
  return true;
}

void MpiRequests::complete(std::size_t index, const MPI_Status& status, int error) {
  const Entry& entry = entries_[index];
  MpiOp& op = *entry.op;
  --op.in_flight[static_cast<int>(entry.transfer.direction)];
  --op.left_in_stage[entry.transfer.stage];
  while (!op.all_moved() && op.left_in_stage[op.stage] == 0) ++op.stage;
  if (entry.transfer.segment >= 0) {
    op.sum->received(entry.transfer.segment);
  }
  if (error != MPI_SUCCESS) {
    entry.op->damage = fmt::format("a message {} rank {} failed: {}",
                                   entry.transfer.direction == Direction::send ? "to" : "from",
                                   entry.transfer.peer, mpi_error_text(error));
    return;
  }
  if (entry.transfer.direction == Direction::recv) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes != entry.transfer.bytes) {
      entry.op->damage = fmt::format("rank {} sent {} bytes where {} were expected",
                                     entry.transfer.peer, bytes, entry.transfer.bytes);
    }
  }
}

std::vector<int> MpiRequests::peers_of(const MpiOp& op) const {
  std::vector<int> peers;
  for (const Entry& entry : entries_) {
    if (entry.op == &op) peers.push_back(entry.transfer.peer);
  }
  for (std::size_t i = 0; i < op.plan.transfers.size(); ++i) {
    const Transfer& transfer = op.plan.transfers[i];
    if (i >= op.next[static_cast<int>(transfer.direction)]) peers.push_back(transfer.peer);
  }
  std::ranges::sort(peers);
  const auto repeated = std::ranges::unique(peers);
  peers.erase(repeated.begin(), repeated.end());
  return peers;
}

}  // namespace capstan::comm
