// "scheduler": which learning-rate schedule, and its parameters per type.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Key warmup_steps() {
  return integer("warmup_num_steps", "1000")
      .at_least(0)
      .automatic("Trainer, Accelerate: their warm-up steps; elsewhere the default")
      .says("Steps of warm-up; 0: none.")
      .costs("More: a safer start, but later at full speed.");
}
Key warmup_type() {
  return choice("warmup_type", "log", {"log", "linear"})
      .says("log rises fast at first; linear rises evenly.")
      .costs("log reaches half way in few steps.");
}
Key total_steps() {
  return integer("total_num_steps", "")
      .at_least(1)
      .must()
      .automatic("the run's number of optimizer steps")
      .says("Optimizer steps of the whole run.")
      .costs("Too small: the rest runs at the floor.");
}
Key last_iteration() {
  return integer("last_batch_iteration", "-1")
      .at_least(-1)
      .says("The last step already taken; -1 starts afresh.")
      .costs("Set by resuming.");
}
Key warmup_min_lr() {
  return number_or_list("warmup_min_lr", "0")
      .at_least(0)
      .automatic("0")
      .says("Learning rate at the start; a list has one entry per parameter group.")
      .costs("0 makes the first step do nothing.");
}
Key warmup_max_lr(const char* fallback) {
  return number_or_list("warmup_max_lr", fallback)
      .at_least(0)
      .or_null()
      .automatic("the optimizer's learning rate")
      .says("Learning rate after warm-up; null: the optimizer's own.")
      .costs("Overrides the optimizer's learning rate.");
}

Section schedule(std::string type, std::string meaning, std::vector<Key> keys) {
  Section section;
  section.path = "scheduler.params";
  section.when = {std::move(type)};
  section.meaning = std::move(meaning);
  section.keys = std::move(keys);
  return section;
}

Section one_cycle() {
  return schedule(
      "onecycle",
      "One rise and fall of the learning rate, momentum the other way round, then decay.",
      {number_or_list("cycle_min_lr", "")
           .at_least(0)
           .must()
           .says("Lowest learning rate.")
           .costs("Start and end."),
       number_or_list("cycle_max_lr", "")
           .at_least(0)
           .must()
           .says("Highest learning rate.")
           .costs("The peak."),
       number("decay_lr_rate", "0").at_least(0).says("Decay after the cycle.").costs("0: none."),
       integer("cycle_first_step_size", "2000")
           .at_least(1)
           .says("Steps of the rise.")
           .costs("Longer: gentler."),
       integer("cycle_second_step_size", "null")
           .at_least(0)
           .says("Steps of the fall; null: as the rise.")
           .costs("Longer: gentler."),
       integer("cycle_first_stair_count", "0")
           .at_least(0)
           .says("Stairs of the rise; 0: smooth.")
           .costs("Fewer changes."),
       integer("cycle_second_stair_count", "null")
           .at_least(0)
           .says("Stairs of the fall; null: as the rise.")
           .costs("Fewer changes."),
       integer("decay_step_size", "0")
           .at_least(0)
           .says("Steps per unit of decay; 0: no decay.")
           .costs("Larger: slower decay."),
       flag("cycle_momentum", true)
           .says("Also move beta1. beta2 stays as it is.")
           .costs("Needs an optimizer with betas or momentum."),
       number_or_list("cycle_min_mom", "0.8")
           .at_least(0)
           .at_most(1)
           .says("Lowest momentum, at the peak.")
           .costs("Lower: less memory of old gradients."),
       number_or_list("cycle_max_mom", "0.9")
           .at_least(0)
           .at_most(1)
           .says("Highest momentum.")
           .costs("As above."),
       number("decay_mom_rate", "0")
           .at_least(0)
           .says("Growth of momentum after the cycle.")
           .costs("0: none."),
       last_iteration()});
}

}  // namespace

std::vector<Section> scheduler_sections() {
  Section section;
  section.path = "scheduler";
  section.meaning = "The learning-rate schedule. It counts optimizer steps that were applied.";
  section.keys = {
      choice("type", "", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"})
          .ignoring_case()
          .must()
          .says("Which schedule. Classes of torch.optim.lr_scheduler can be named in the package "
                "deepspeed; elsewhere pass an object.")
          .costs("Costs no time or memory."),
  };
  Section other;
  other.path = "scheduler.params";
  other.when = {"*"};
  other.meaning = "Another class of torch.optim.lr_scheduler, which the package deepspeed creates.";
  other.keys = {passed("*").says("Each parameter of its constructor.").costs("As PyTorch says.")};
  return {
      section,
      schedule("warmuplr", "Warm-up, then constant.",
               {warmup_min_lr(), warmup_max_lr("null"), warmup_steps(), warmup_type(),
                last_iteration()}),
      schedule("warmupdecaylr", "Warm-up, then a straight line down.",
               {total_steps(), warmup_min_lr(), warmup_max_lr("0.001"), warmup_steps(),
                warmup_type(), last_iteration()}),
      schedule("warmupcosinelr", "Warm-up, then half a cosine down.",
               {total_steps(),
                number("warmup_min_ratio", "0.0")
                    .at_least(0)
                    .at_most(1)
                    .says("Start, as a share of the learning rate.")
                    .costs("0 starts at zero."),
                warmup_steps(),
                number("cos_min_ratio", "0.0001")
                    .at_least(0)
                    .at_most(1)
                    .says("Floor at the end, as a share of the learning rate.")
                    .costs("Higher: the last steps still learn."),
                warmup_type(), last_iteration()}),
      one_cycle(),
      schedule(
          "lrrangetest", "Grow the learning rate to see where training breaks.",
          {number_or_list("lr_range_test_min_lr", "0.001")
               .at_least(0)
               .says("Where it starts.")
               .costs("Low enough to train."),
           integer("lr_range_test_step_size", "2000")
               .at_least(1)
               .says("Steps per unit of growth.")
               .costs("Longer: finer."),
           number("lr_range_test_step_rate", "1.0")
               .at_least(0)
               .says("Growth per unit.")
               .costs("Larger: coarser."),
           flag("lr_range_test_staircase", false).says("Grow in jumps.").costs("Easier to read."),
           last_iteration()}),
      other};
}

}  // namespace capstan::config
