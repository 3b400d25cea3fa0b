#include "capstan/pipeline/transfers.h"

#include <algorithm>
#include <compare>
#include <cstdint>

#include "capstan/pipeline/simulate.h"

namespace capstan::pipeline {
namespace {

// Of two things that end at the same time, forwards come first, then backwards; of these, in the
// order in which micro-batches pass the parts; and what is sent right after what makes it. So
// whatever a neighbour sends when our own work ends is received from before that work on.
struct Moment {
  std::int64_t end = 0;
  bool backward = false;
  int place = 0;  // of the part, counted in the direction of the work
  bool sent = false;
  int micro_batch = 0;
  auto operator<=>(const Moment&) const = default;
};

struct Event {
  Moment moment;
  Instruction instruction;
};

bool gives_gradient(Op op) { return op == Op::backward || op == Op::backward_inputs; }

// Each receive right before the work that needs it, each send right after the work that makes it.
Schedule in_place(const Shape& shape, const std::vector<std::vector<Instruction>>& work) {
  Schedule schedule = {.shape = shape};
  schedule.stages.resize(work.size());
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<Instruction>& list = schedule.stages[stage];
    const auto add = [&](Op op, const Instruction& of) {
      const int peer = peer_of(shape, stage, {op, of.micro_batch, of.chunk});
      if (peer >= 0 && peer != stage) list.push_back({op, of.micro_batch, of.chunk});
    };
    for (const Instruction& instruction : work[stage]) {
      if (instruction.op == Op::forward) add(Op::receive_input, instruction);
      if (gives_gradient(instruction.op)) add(Op::receive_gradient, instruction);
      list.push_back(instruction);
      if (instruction.op == Op::forward) add(Op::send_output, instruction);
      if (gives_gradient(instruction.op)) add(Op::send_gradient, instruction);
    }
  }
  return schedule;
}

// Per stage, its work and its transfers in the order of their moments.
std::vector<std::vector<Event>> in_order(const Shape& shape, const Simulation& run) {
  std::vector<std::vector<Event>> events(run.stages.size());
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const Span& span : run.stages[stage]) {
      const auto& [op, micro_batch, chunk] = span.instruction;
      const int part = shape.part(stage, chunk);
      const bool forward = op == Op::forward;
      Moment moment = {.end = span.end,
                       .backward = !forward,
                       .place = forward ? part : -part,
                       .micro_batch = micro_batch};
      events[stage].push_back({moment, span.instruction});
      if (op == Op::backward_weights) continue;
      const Instruction send = {forward ? Op::send_output : Op::send_gradient, micro_batch, chunk};
      const int peer = peer_of(shape, stage, send);
      if (peer < 0 || peer == stage) continue;
      moment.sent = true;
      const int peer_chunk = (part + (forward ? 1 : -1)) / shape.stages;
      events[stage].push_back({moment, send});
      events[peer].push_back(
          {moment, {forward ? Op::receive_input : Op::receive_gradient, micro_batch, peer_chunk}});
    }
  }
  for (auto& list : events) {
    std::sort(list.begin(), list.end(),
              [](const Event& a, const Event& b) { return a.moment < b.moment; });
  }
  return events;
}

}  // namespace

Schedule with_transfers(const Shape& shape, bool training,
                        const std::vector<std::vector<Instruction>>& work) {
  const Simulation run = simulate(in_place(shape, work), {Costs{}});
  Schedule schedule = {.shape = shape, .training = training};
  for (int stage = 0; const std::vector<Event>& events : in_order(shape, run)) {
    std::vector<Instruction>& list = schedule.stages.emplace_back();
    std::vector<int> left(shape.chunks, shape.micro_batches);  // backwards of each chunk
    int complete = -1;                                         // chunk that is to be reduced
    const auto reduce = [&] {
      if (complete >= 0) list.push_back({Op::reduce, 0, complete});
      complete = -1;
    };
    for (const Event& event : events) {
      const auto& [op, micro_batch, chunk] = event.instruction;
      if (op != Op::send_gradient) reduce();  // a stage waits for that gradient: it goes first
      const int part = shape.part(stage, chunk);
      if (op == Op::forward && (part == 0 || part == shape.parts() - 1)) {
        list.push_back({Op::load, micro_batch, chunk});
      }
      list.push_back(event.instruction);
      const bool ends = op == Op::backward || op == Op::backward_weights;
      if (ends && --left[chunk] == 0) complete = chunk;
    }
    reduce();
    if (training) list.insert(list.end(), {{Op::reduce_tied}, {Op::step}});
    ++stage;
  }
  return schedule;
}

}  // namespace capstan::pipeline
