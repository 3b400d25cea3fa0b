// How ranks find out why an operation does not finish: they tell each other where they are.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "capstan/comm/mpi/mpi_thread.h"

namespace capstan::comm {
namespace {

// A rank asks at most so many of the peers it waits for; with thousands of ranks the answers of a
// few tell enough.
constexpr std::size_t kAskedPeers = 16;

std::string describe_mismatch(const MpiGroup& group, std::int64_t number, const OpFacts& ours,
                              int peer, const OpFacts& theirs) {
  const bool we_come_first = group.rank < peer;
  return fmt::format("collective #{} does not match: rank {} issued {}; rank {} issued {}", number,
                     we_come_first ? group.rank : peer, to_text(we_come_first ? ours : theirs),
                     we_come_first ? peer : group.rank, to_text(we_come_first ? theirs : ours));
}

std::string describe_peer(const MpiGroup& group, const MpiOp& op, int peer) {
  const auto report = group.reports.find(peer);
  if (report == group.reports.end()) {
    return fmt::format("rank {} does not answer: it has died, was stopped, or is cut off", peer);
  }
  if (op.number == 0 || report->second.number >= op.number) {
    return fmt::format("rank {} answers and is as far as this rank", peer);
  }
  if (report->second.number == 0) {
    return fmt::format("rank {} answers but has issued no collective yet", peer);
  }
  return fmt::format("rank {} answers but has not issued it; its last was #{} {}", peer,
                     report->second.number, to_text(report->second.facts));
}

}  // namespace

void MpiWorker::watch_for_stalls(MpiClock::time_point now) {
  for (auto& op : active_) {
    const bool stalled = now - op->issued > options_.stall_after || !op->damage.empty();
    const bool asked_lately =
        op->noted != MpiClock::time_point{} && now - op->noted < options_.stall_after;
    if (op->started && !op->failed && !op->work->isCompleted() && stalled && !asked_lately) {
      note_stall(*op, now);
    }
  }
}

void MpiWorker::note_stall(MpiOp& op, MpiClock::time_point now) {
  MpiGroup& group = *op.group;
  const bool asked_before = op.noted != MpiClock::time_point{};
  op.noted = now;
  if (!op.damage.empty() && asked_before) {
    // The peers had their time to name the mismatch that a message of the wrong size implies.
    const std::string reason = fmt::format("{}: {}", to_text(op.facts), op.damage);
    fail_group(group, reason);
    tell_peers(group, reason);
    return;
  }
  std::vector<int> peers = requests_->peers_of(op);
  if (!op.damage.empty()) {  // the one that sent it may not be among those still waited for
    for (const Transfer& transfer : op.plan.transfers) peers.push_back(transfer.peer);
  }
  if (peers.size() > kAskedPeers) {
    peers.resize(kAskedPeers);
  }
  std::string text;
  for (const int peer : peers) {
    if (asked_before) {
      text += fmt::format("{}{}", text.empty() ? "" : "; ", describe_peer(group, op, peer));
    }
    Note note{.kind = Note::Kind::waiting, .group = group.id, .from = group.rank};
    note.number = op.number;
    note.facts = op.facts;
    notes_->send(note, group.world_ranks[peer]);
  }
  const std::lock_guard lock(group.mutex);
  group.stall = text;
}

void MpiWorker::read_notes() {
  Note note;
  while (notes_->receive(note)) {
    answer(note);
  }
  notes_->flushed();
}

void MpiWorker::answer(const Note& note) {
  std::shared_ptr<MpiGroup> group;
  {
    const std::lock_guard lock(mutex_);
    const auto named = [&](const auto& known) {
      const auto& ranks = known->world_ranks;
      return known->id == note.group && note.from < static_cast<int>(ranks.size());
    };
    const auto found = std::ranges::find_if(groups_, named);
    if (found == groups_.end()) {
      return;  // not made here yet; the peer asks again
    }
    group = *found;
  }
  if (note.kind == Note::Kind::abort) {
    fail_group(*group, note.text.data());
    return;
  }
  group->reports[note.from] = {note.number, note.facts};
  if (note.kind == Note::Kind::behind) {
    return;
  }
  const MpiGroup::Past& past = group->history[note.number % group->history.size()];
  if (note.number > 0 && past.number == note.number && !same_collective(past.facts, note.facts)) {
    const std::string reason =
        describe_mismatch(*group, note.number, past.facts, note.from, note.facts);
    fail_group(*group, reason);
    tell_peers(*group, reason);
    return;
  }
  Note reply{.kind = Note::Kind::behind, .group = group->id, .from = group->rank};
  reply.number = group->started;
  reply.facts = group->history[group->started % group->history.size()].facts;
  notes_->send(reply, group->world_ranks[note.from]);
}

void MpiWorker::tell_peers(MpiGroup& group, const std::string& reason) {
  Note note{.kind = Note::Kind::abort, .group = group.id, .from = group.rank};
  reason.copy(note.text.data(), note.text.size() - 1);
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != group.rank) notes_->send(note, group.world_ranks[peer]);
  }
  // This rank may be about to exit: give the messages a moment to leave.
  const auto deadline = MpiClock::now() + std::chrono::milliseconds(200);
  while (!notes_->flushed() && MpiClock::now() < deadline) {
    std::this_thread::yield();
  }
}

}  // namespace capstan::comm
