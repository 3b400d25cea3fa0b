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

// Answers take some milliseconds; a rank that is silent for longer does not listen.
constexpr std::chrono::milliseconds kAnswerPatience{300};

std::string describe_mismatch(const MpiGroup& group, const Note& theirs, const OpFacts& ours) {
  if (theirs.number > 0) {
    return mismatch_text(theirs.number, {group.rank, ours}, {theirs.from, theirs.facts});
  }
  return fmt::format("send and recv do not match: rank {} issued {}; rank {} issued {}", group.rank,
                     to_text(ours), theirs.from, to_text(theirs.facts));
}

std::string describe_peer(const MpiGroup& group, const MpiOp& op, int peer) {
  const auto report = group.reports.find(peer);
  if (report == group.reports.end()) {
    return fmt::format("rank {} does not answer: it has died, was stopped, or is cut off", peer);
  }
  if (op.number < 0) {
    return fmt::format("rank {} answers, but has not issued its side of it", peer);
  }
  if (report->second.number >= op.number) {
    return fmt::format("rank {} answers and has come as far as this rank", peer);
  }
  if (report->second.number == 0) {
    return fmt::format("rank {} answers, but has issued no collective yet", peer);
  }
  return fmt::format("rank {} answers, but has not issued it; its last was #{} {}", peer,
                     report->second.number, to_text(report->second.facts));
}

// What this rank has issued where the note's sender is; null when it has not come so far.
const OpFacts* find_counterpart(const MpiGroup& group, const Note& note) {
  if (note.number > 0) {
    return group.collectives.find(note.number);
  }
  const OpKind ours = note.facts.kind == OpKind::send ? OpKind::recv : OpKind::send;
  const auto pair = group.pairs.find({ours, note.from});
  return pair == group.pairs.end() ? nullptr : pair->second.find(-note.number);
}

bool agrees(const Note& note, const OpFacts& ours) {
  if (note.number > 0) {
    return same_collective(ours, note.facts);
  }
  return ours.elems == note.facts.elems && ours.dtype == note.facts.dtype;
}

}  // namespace

void MpiWorker::watch_for_stalls(MpiClock::time_point now) {
  for (auto& op : active_) {
    const bool stalled = now - op->issued > options_.stall_after || !op->damage.empty();
    if (op->started && !op->failed && !op->work->isCompleted() && stalled) {
      ask_peers(*op, now);
    }
  }
}

void MpiWorker::ask_peers(MpiOp& op, MpiClock::time_point now) {
  MpiGroup& group = *op.group;
  const bool first = op.asked == MpiClock::time_point{};
  if (first) {
    op.first_asked = now;
    group.reports.clear();  // what was heard about earlier operations says nothing here
  }
  if (!op.damage.empty() && !first && now - op.first_asked > 2 * options_.stall_after) {
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
  if (first || now - op.asked > options_.stall_after) {
    op.asked = now;
    Note note{.kind = Note::Kind::waiting, .group = group.id, .from = group.rank};
    note.number = op.number;
    note.facts = op.facts;
    for (const int peer : peers) notes_->send(note, group.world_ranks[peer]);
  }
  if (now - op.first_asked > kAnswerPatience) {
    std::string text;
    for (const int peer : peers) {
      text += (text.empty() ? "" : "; ") + describe_peer(group, op, peer);
    }
    const std::lock_guard lock(group.mutex);
    group.stall = text;
  }
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
      return known->id == note.group && note.from < known->size();
    };
    const auto found = std::ranges::find_if(groups_, named);
    if (found == groups_.end()) {
      // Not made here yet. Whoever waits asks again; an abort is said once.
      if (note.kind == Note::Kind::abort) early_aborts_[note.group] = note.text.data();
      return;
    }
    group = *found;
  }
  if (note.kind == Note::Kind::abort) {
    fail_group(*group, note.text.data());
    return;
  }
  group->reports[note.from] = {std::max<std::int64_t>(note.number, 0), note.facts};
  if (note.kind == Note::Kind::here) {
    return;
  }
  const OpFacts* const ours = find_counterpart(*group, note);
  if (ours != nullptr && !agrees(note, *ours)) {
    const std::string reason = describe_mismatch(*group, note, *ours);
    fail_group(*group, reason);
    tell_peers(*group, reason);
    return;
  }
  Note reply{.kind = Note::Kind::here, .group = group->id, .from = group->rank};
  reply.number = group->collectives.last;
  if (const OpFacts* last = group->collectives.find(reply.number)) {
    reply.facts = *last;
  }
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
