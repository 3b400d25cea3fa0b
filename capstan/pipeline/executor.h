// Runs one stage of a pipeline: its list of instructions, one after another.
#pragma once

#include <map>
#include <utility>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"
#include "capstan/pipeline/channel.h"
#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/stage.h"

namespace capstan::pipeline {

// Transfers run beside computing; a stage waits only for what it needs next.
//
// Gradients are added in the order of the micro-batches in every schedule, so that the result has
// the bits of the same micro-batches without a pipeline.
//
// Threads: one at a time.
// Ranks:   one per stage: a rank's number in the group is its stage. All run the same schedule.
// Errors:  whatever goes wrong, here or in the stage's code, ends the group on all ranks with a
//          CommError that names stage and instruction; the error itself is nested in it.
class Executor {
 public:
  // Tensors of other stages arrive on `device`. Group and stage must outlive this. Throws
  // ConfigError where the schedule has another number of stages than the group has ranks.
  Executor(Schedule schedule, comm::Group& group, Stage& stage, c10::Device device);

  // All of it once: a step of training, or the forwards of one batch. Gives the losses of the
  // micro-batches, in their order, where this stage has the last part.
  Tensors run();

 private:
  // What is kept of one micro-batch in one chunk.
  struct Slot {
    Tensors inputs;
    Tensors labels;
    Tensors outputs;
    Tensors input_gradients;
    Stage::Differential differential;
  };

  void execute(const Instruction& instruction);
  void load(const Instruction& instruction);
  void forward(const Instruction& instruction);
  void backward(const Instruction& instruction);
  void scale_by_rest(Slot& of);
  Stage::Differential differential_of(const Instruction& instruction);
  // What the part before or after made, of this stage itself or of a peer.
  Tensors take(const Instruction& receive);
  Channel& channel(const Instruction& transfer);

  Slot& slot(const Instruction& of) { return slots_[{of.chunk, of.micro_batch}]; }
  int part(const Instruction& of) const { return schedule_.shape.part(stage_number_, of.chunk); }
  bool is_last(const Instruction& of) const { return part(of) == schedule_.shape.parts() - 1; }

  const Schedule schedule_;
  comm::Group& group_;
  Stage& stage_;
  const int stage_number_;
  const c10::Device device_;
  std::map<int, Channel> channels_;            // by peer
  std::map<std::pair<int, int>, Slot> slots_;  // by chunk and micro-batch
  std::map<int, int> backwards_left_;          // by chunk
  Tensors losses_;
};

}  // namespace capstan::pipeline
