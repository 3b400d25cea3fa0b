#include "capstan/pipeline/simulate.h"

#include <algorithm>
#include <string>

#include "capstan/base/error.h"

namespace capstan::pipeline {
namespace {

constexpr std::int64_t kNever = -1;

bool sends(Op op) { return op == Op::send_output || op == Op::send_gradient; }

// All stages at once. A stage goes on until it needs something that is not there; each pass over
// the stages lets those go on that wait for something that is there by now.
class Run {
 public:
  Run(const Schedule& schedule, const std::vector<Costs>& costs, Transport transport)
      : schedule_(schedule), costs_(costs), transport_(transport) {
    const std::size_t transfers = 2 * index({.part = schedule.shape.parts()});
    sent_.assign(transfers, kNever);
    received_.assign(transfers, kNever);
    stages_.resize(schedule.stages.size());
    result_.stages.resize(schedule.stages.size());
  }

  Simulation run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < std::ssize(stages_); ++stage) {
        while (advance(stage)) moved = true;
      }
    }
    for (int stage = 0; stage < std::ssize(stages_); ++stage) {
      if (current(stage) != nullptr) fail();
      result_.length = std::max(result_.length, stages_[stage].clock);
    }
    return std::move(result_);
  }

 private:
  struct Stage {
    std::size_t next = 0;  // instruction
    std::int64_t clock = 0;
  };

  const Instruction* current(int stage) const {
    const auto& list = schedule_.stages[stage];
    return stages_[stage].next < list.size() ? &list[stages_[stage].next] : nullptr;
  }

  const Costs& costs_of(int part) const { return costs_.size() == 1 ? costs_[0] : costs_[part]; }

  std::size_t index(const Transfer& transfer) const {
    const Shape& shape = schedule_.shape;
    const std::size_t place = (transfer.gradient ? shape.parts() : 0) + transfer.part;
    return place * shape.micro_batches + transfer.micro_batch;
  }

  std::int64_t duration(int stage, const Instruction& instruction) const {
    const Costs& costs = costs_of(schedule_.shape.part(stage, instruction.chunk));
    switch (instruction.op) {
      case Op::forward:
        return costs.forward;
      case Op::backward:
        return costs.backward_inputs + costs.backward_weights;
      case Op::backward_inputs:
        return costs.backward_inputs;
      case Op::backward_weights:
        return costs.backward_weights;
      default:
        return 0;
    }
  }

  // When what the instruction waits for has arrived; kNever if that is not known yet.
  std::int64_t ready(int stage, const Instruction& instruction) const {
    Op needed = Op::load;
    if (instruction.op == Op::forward) needed = Op::receive_input;
    if (instruction.op == Op::backward || instruction.op == Op::backward_inputs) {
      needed = Op::receive_gradient;
    }
    const Instruction source = {needed, instruction.micro_batch, instruction.chunk};
    const std::optional<Transfer> transfer = transfer_of(schedule_.shape, stage, source);
    if (!transfer) return 0;
    const int peer = peer_of(schedule_.shape, stage, source);
    if (peer < 0 || peer == stage) return 0;  // list order is enough
    const std::size_t at = index(*transfer);
    if (sent_[at] == kNever || received_[at] == kNever) return kNever;
    if (transport_ == Transport::rendezvous) return 0;  // the receive has waited
    return std::max(sent_[at], received_[at]) + costs_of(transfer->part).transfer;
  }

  bool advance(int stage) {
    const Instruction* instruction = current(stage);
    if (instruction == nullptr) return false;
    if (const auto transfer = transfer_of(schedule_.shape, stage, *instruction)) {
      return transport_ == Transport::rendezvous ? meet(stage, *instruction, *transfer)
                                                 : post(stage, *instruction, *transfer);
    }
    const std::int64_t when = ready(stage, *instruction);
    if (when == kNever) return false;
    Stage& state = stages_[stage];
    const std::int64_t begin = std::max(state.clock, when);
    const bool computes = instruction->op == Op::forward || instruction->op == Op::backward ||
                          instruction->op == Op::backward_inputs ||
                          instruction->op == Op::backward_weights;
    if (computes) {
      state.clock = begin + duration(stage, *instruction);
      result_.stages[stage].push_back({*instruction, begin, state.clock});
    }
    ++state.next;
    return true;
  }

  bool post(int stage, const Instruction& instruction, const Transfer& transfer) {
    if (peer_of(schedule_.shape, stage, instruction) < 0) return false;
    (sends(instruction.op) ? sent_ : received_)[index(transfer)] = stages_[stage].clock;
    ++stages_[stage].next;
    return true;
  }

  // Both sides stand at the transfer and go on together when it is over.
  bool meet(int stage, const Instruction& instruction, const Transfer& transfer) {
    const int peer = peer_of(schedule_.shape, stage, instruction);
    const Instruction* theirs = peer < 0 || peer == stage ? nullptr : current(peer);
    if (theirs == nullptr || transfer_of(schedule_.shape, peer, *theirs) != transfer) return false;
    const std::int64_t end =
        std::max(stages_[stage].clock, stages_[peer].clock) + costs_of(transfer.part).transfer;
    sent_[index(transfer)] = received_[index(transfer)] = end;
    for (const int side : {stage, peer}) stages_[side] = {stages_[side].next + 1, end};
    return true;
  }

  [[noreturn]] void fail() const {
    std::string waiting;
    for (int stage = 0; stage < std::ssize(stages_); ++stage) {
      const Instruction* instruction = current(stage);
      if (instruction == nullptr) continue;
      if (!waiting.empty()) waiting += ", ";
      waiting += "stage " + std::to_string(stage) + " in " + to_string(*instruction);
    }
    throw InternalError({.what = "the pipeline's stages wait for each other for ever: " + waiting,
                         .where = "pipeline schedule of " + std::to_string(schedule_.shape.stages) +
                                  " stages, " + std::to_string(schedule_.shape.micro_batches) +
                                  " micro-batches"});
  }

  const Schedule& schedule_;
  const std::vector<Costs>& costs_;
  Transport transport_;
  std::vector<std::int64_t> sent_;      // by transfer: when that was reached
  std::vector<std::int64_t> received_;  // likewise
  std::vector<Stage> stages_;
  Simulation result_;
};

}  // namespace

std::int64_t Simulation::busy(int stage) const {
  std::int64_t sum = 0;
  for (const Span& span : stages[stage]) sum += span.end - span.begin;
  return sum;
}

double Simulation::efficiency() const {
  std::int64_t sum = 0;
  for (int stage = 0; stage < std::ssize(stages); ++stage) sum += busy(stage);
  const std::int64_t all = length * std::ssize(stages);
  return all == 0 ? 1 : static_cast<double>(sum) / static_cast<double>(all);
}

Simulation simulate(const Schedule& schedule, const std::vector<Costs>& costs,
                    Transport transport) {
  return Run(schedule, costs, transport).run();
}

}  // namespace capstan::pipeline
