#include "capstan/pipeline/check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

namespace capstan::pipeline {
namespace {

using Done = unsigned;  // a bit per Op

constexpr Done bit(Op op) { return 1U << static_cast<unsigned>(op); }
constexpr bool has(Done done, Op op) { return (done & bit(op)) != 0; }
constexpr bool whole_backward(Done done) {
  return has(done, Op::backward) || has(done, Op::backward_weights);
}

// One stage's list, against what has been done before each instruction.
class StageCheck {
 public:
  StageCheck(const Schedule& schedule, int stage, std::vector<std::string>& problems)
      : schedule_(schedule),
        shape_(schedule.shape),
        stage_(stage),
        done_(static_cast<std::size_t>(shape_.micro_batches) * shape_.chunks, 0),
        reduced_(shape_.chunks, false),
        problems_(problems) {}

  void run() {
    for (const Instruction& instruction : schedule_.stages[stage_]) visit(instruction);
    if (schedule_.training && !stepped_) say("has no step");
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      for (int m = 0; m < shape_.micro_batches; ++m) finish(m, chunk);
    }
  }

 private:
  void say(const std::string& what) {
    problems_.push_back("stage " + std::to_string(stage_) + ": " + what);
  }

  Done& done(int micro_batch, int chunk) {
    return done_[static_cast<std::size_t>(chunk) * shape_.micro_batches + micro_batch];
  }

  // What an instruction of this part needs: the same for every micro-batch.
  Done needed_by(Op op, int chunk) const {
    const int part = shape_.part(stage_, chunk);
    const bool alone = shape_.stages == 1;
    const bool first = part == 0;
    const bool last = part == shape_.parts() - 1;
    switch (op) {
      case Op::forward:
        return (first || last ? bit(Op::load) : 0) | (first || alone ? 0 : bit(Op::receive_input));
      case Op::backward:
      case Op::backward_inputs:
        return bit(Op::forward) | (last || alone ? 0 : bit(Op::receive_gradient));
      case Op::backward_weights:
        return bit(Op::backward_inputs);
      case Op::send_output:
        return bit(Op::forward);
      default:
        return 0;
    }
  }

  void visit(const Instruction& instruction) {
    const auto& [op, micro_batch, chunk] = instruction;
    if (micro_batch < 0 || micro_batch >= shape_.micro_batches || chunk < 0 ||
        chunk >= shape_.chunks) {
      return say(to_string(instruction) + " is beyond the pipeline's shape");
    }
    if (stepped_) say(to_string(instruction) + " comes after the step");
    const bool forward_only = op <= Op::send_output;
    if (!schedule_.training && !forward_only) say(to_string(instruction) + " is only for training");
    if (op >= Op::reduce) return visit_end(instruction);
    Done& before = done(micro_batch, chunk);
    if (has(before, op)) say(to_string(instruction) + " is there twice");
    if (transfer_of(shape_, stage_, instruction)) {
      const int peer = peer_of(shape_, stage_, instruction);
      if (peer < 0 || peer == stage_) say(to_string(instruction) + " has no other side");
    }
    bool ready = (needed_by(op, chunk) & ~before) == 0;
    if (shape_.stages == 1) ready = ready && neighbour_done(instruction);
    if (op == Op::send_gradient) {
      ready = has(before, Op::backward) || has(before, Op::backward_inputs);
    }
    if (!ready) say(to_string(instruction) + " comes before what it needs");
    if (op == Op::backward && has(before, Op::backward_inputs)) {
      say(to_string(instruction) + " repeats half of a backward");
    }
    before |= bit(op);
  }

  // With one stage nothing travels: the part before or after has run in this list.
  bool neighbour_done(const Instruction& instruction) {
    const auto& [op, micro_batch, chunk] = instruction;
    if (op == Op::forward && chunk > 0) return has(done(micro_batch, chunk - 1), Op::forward);
    const bool back = op == Op::backward || op == Op::backward_inputs;
    if (!back || chunk + 1 == shape_.chunks) return true;
    const Done after = done(micro_batch, chunk + 1);
    return has(after, Op::backward) || has(after, Op::backward_inputs);
  }

  void visit_end(const Instruction& instruction) {
    bool ready = true;
    if (instruction.op == Op::reduce) {
      ready = !reduced_[instruction.chunk] && chunk_done(instruction.chunk);
      reduced_[instruction.chunk] = true;
    } else if (instruction.op == Op::reduce_tied) {
      ready = !tied_;
      for (int chunk = 0; chunk < shape_.chunks; ++chunk) ready = ready && chunk_done(chunk);
      tied_ = true;
    } else {
      ready = tied_ && std::find(reduced_.begin(), reduced_.end(), false) == reduced_.end();
      stepped_ = true;
    }
    if (!ready) say(to_string(instruction) + " is there twice or before what it needs");
  }

  bool chunk_done(int chunk) {
    for (int m = 0; m < shape_.micro_batches; ++m) {
      if (!whole_backward(done(m, chunk))) return false;
    }
    return true;
  }

  // Nothing is left out; a forward that lacks its input has been told of already.
  void finish(int micro_batch, int chunk) {
    const Done all = done(micro_batch, chunk);
    const int part = shape_.part(stage_, chunk);
    const bool sends_on = shape_.stages > 1 && part < shape_.parts() - 1;
    const bool sends_back = schedule_.training && shape_.stages > 1 && part > 0;
    const auto need = [&](bool there, Op op) {
      if (!there) say(to_string(Instruction{op, micro_batch, chunk}) + " is missing");
    };
    need(has(all, Op::forward), Op::forward);
    need(!schedule_.training || whole_backward(all), Op::backward);
    need(!sends_on || has(all, Op::send_output), Op::send_output);
    need(!sends_back || has(all, Op::send_gradient), Op::send_gradient);
  }

  const Schedule& schedule_;
  const Shape& shape_;
  int stage_;
  std::vector<Done> done_;
  std::vector<bool> reduced_;
  bool tied_ = false;
  bool stepped_ = false;
  std::vector<std::string>& problems_;
};

// By (our stage, the other, the one that sends or -1 for both): what travels, as our list has it.
using Links = std::map<std::array<int, 3>, std::vector<Transfer>>;

Links links_of(const Schedule& schedule, Link link) {
  Links links;
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    for (const Instruction& instruction : schedule.stages[stage]) {
      const auto transfer = transfer_of(schedule.shape, stage, instruction);
      if (!transfer) continue;
      const int sender = link == Link::shared ? -1 : transfer->part % schedule.shape.stages;
      const int peer = peer_of(schedule.shape, stage, instruction);
      links[{stage, peer, sender}].push_back(*transfer);
    }
  }
  return links;
}

std::string transfer_text(const std::vector<Transfer>& transfers, std::size_t at) {
  if (at >= transfers.size()) return "nothing";
  const Transfer& transfer = transfers[at];
  return std::string(transfer.gradient ? "the gradient" : "the output") + " of micro-batch " +
         std::to_string(transfer.micro_batch) + " from part " + std::to_string(transfer.part);
}

void check_links(const Links& links, std::vector<std::string>& problems) {
  for (const auto& [ends, ours] : links) {
    const auto [stage, peer, sender] = ends;
    const auto found = links.find({peer, stage, sender});
    const std::vector<Transfer> theirs =
        found == links.end() ? std::vector<Transfer>() : found->second;
    if (ours == theirs || (found != links.end() && peer < stage)) continue;
    const auto differs =
        std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end()).first;
    const auto at = static_cast<std::size_t>(differs - ours.begin());
    problems.push_back("between stages " + std::to_string(stage) + " and " + std::to_string(peer) +
                       ", transfer " + std::to_string(at) + " is " + transfer_text(ours, at) +
                       " on the one side and " + transfer_text(theirs, at) + " on the other");
  }
}

}  // namespace

std::vector<std::string> problems_of(const Schedule& schedule, Link link) {
  std::vector<std::string> problems;
  if (std::ssize(schedule.stages) != schedule.shape.stages) {
    return {"there are " + std::to_string(schedule.stages.size()) + " lists for " +
            std::to_string(schedule.shape.stages) + " stages"};
  }
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    StageCheck(schedule, stage, problems).run();
  }
  if (problems.empty()) check_links(links_of(schedule, link), problems);
  return problems;
}

}  // namespace capstan::pipeline
