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
  auto& transfers = op.plan.transfers;
  while (op.next < transfers.size() && op.in_flight < kWindow && !op.failed) {
    const Transfer& transfer = transfers[op.next];
    const bool stage_begins = op.next > 0 && transfers[op.next - 1].stage != transfer.stage;
    if (stage_begins && op.in_flight > 0) {
      return;
    }
    const int peer = op.group->world_ranks[transfer.peer];
    const auto count = static_cast<int>(transfer.bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    const int error =
        transfer.direction == Direction::send
            ? MPI_Isend(transfer.memory, count, MPI_BYTE, peer, op.tag, comm_, &request)
            : MPI_Irecv(transfer.memory, count, MPI_BYTE, peer, op.tag, comm_, &request);
    ++op.next;
    if (error != MPI_SUCCESS) {
      op.damage = fmt::format("a message of {} bytes {} rank {} could not be started: {}",
                              transfer.bytes, transfer.direction == Direction::send ? "to" : "from",
                              transfer.peer, mpi_error_text(error));
      return;
    }
    ++op.in_flight;
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
  --entry.op->in_flight;
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
  for (std::size_t i = op.next; i < op.plan.transfers.size(); ++i) {
    peers.push_back(op.plan.transfers[i].peer);
  }
  std::ranges::sort(peers);
  const auto repeated = std::ranges::unique(peers);
  peers.erase(repeated.begin(), repeated.end());
  return peers;
}

}  // namespace capstan::comm
