// The top level: batch sizes, gradients, what a run says.
#include "capstan/config/schema.h"

namespace capstan::config {

namespace {

Section batch_section() {
  Section batch;
  batch.meaning =
      "Batch sizes. train_batch_size = train_micro_batch_size_per_gpu x "
      "gradient_accumulation_steps x data-parallel ranks. Give any two and the third is computed; "
      "anything else that is missing is 1.";
  batch.keys = {
      integer("train_batch_size", "")
          .at_least(1)
          .automatic("computed from the other two")
          .says("Samples per optimizer step, over all ranks.")
          .costs("Larger: steadier gradients, fewer updates per sample."),
      integer("train_micro_batch_size_per_gpu", "")
          .at_least(1)
          .automatic("Trainer, Accelerate: the loader's batch size; elsewhere computed, or 1")
          .says("Samples per rank and forward.")
          .costs("Larger: faster kernels, more memory for activations."),
      integer("gradient_accumulation_steps", "")
          .at_least(1)
          .automatic("Trainer, Accelerate: their own value; elsewhere computed, or 1")
          .says("Forward and backward passes per optimizer step.")
          .costs("Larger: a larger batch in the same memory."),
      flag("managed_gradient_accumulation", true)
          .says("true: step() updates at every gradient_accumulation_steps-th call. false: at "
                "every call.")
          .costs("false leaves counting the micro-batches to the caller."),
  };
  return batch;
}

Section gradient_section() {
  Section gradients;
  gradients.meaning = "Gradients: clipping, averaging and communication.";
  gradients.keys = {
      number("gradient_clipping", "1.0")
          .automatic("Trainer: max_grad_norm; elsewhere 1.0")
          .says("Largest global L2 norm of the gradients; 0 or less turns clipping off.")
          .costs("Smaller: safer against spikes, but slower if every step is clipped."),
      flag("prescale_gradients", false)
          .says("Divide by the number of ranks before the sum instead of after it.")
          .costs("No overflow in fp16 sums, more underflow."),
      number("gradient_predivide_factor", "1.0")
          .above(0)
          .says("Divide by this before the sum and by ranks / this after it.")
          .costs("A compromise between dividing before (ranks) and after (1) the sum."),
      choice("gradient_allreduce_op", "mean", {"mean", "sum"})
          .ignoring_case()
          .says("Mean or sum of the ranks' gradients.")
          .costs("sum makes the step grow with the number of ranks."),
      choice("communication_data_type", "null", {"fp32", "fp16", "bf16"})
          .ignoring_case()
          .or_null()
          .says("Dtype in which gradients are communicated; null: that of the parameters.")
          .costs(
              "fp32 doubles the bytes of a 16-bit run and rounds less. Sums are fp32 in any case."),
      choice("seq_parallel_communication_data_type", "fp32", {"fp32", "fp16", "bf16"})
          .ignoring_case()
          .or_null()
          .idle_without(Feature::sequence_parallel)
          .says(
              "communication_data_type where sequence_parallel_size is above 1; null: as it says.")
          .costs("As communication_data_type."),
      flag("sparse_gradients", false)
          .needs(Feature::sparse_gradients)
          .says("Gather embedding gradients as (index, value) pairs."),
      flag("disable_allgather", false)
          .no_effect("updated parameters are always gathered as the stage requires")
          .says("Use broadcasts instead of all-gathers after the step."),
      flag("zero_allow_untested_optimizer", false)
          .only_for({Door::deepspeed_package}, Standing::no_effect,
                    "every element-wise optimizer works on shards, and others are refused by name")
          .says("Allow, at stages 1 to 3, an optimizer object that the package does not know.")
          .costs("You must make sure that it treats every element alike."),
      flag("zero_force_ds_cpu_optimizer", true)
          .only_for({Door::deepspeed_package}, Standing::no_effect,
                    "optimizer state in host memory works with every element-wise optimizer")
          .says("Refuse a torch optimizer object if optimizer state is offloaded.")
          .costs("false: torch's operations update the state in host memory, far slower."),
      flag("graph_harvesting", false)
          .needs(Feature::graph_capture)
          .says("Capture the optimizer's kernels in device graphs."),
  };
  return gradients;
}

Section report_section() {
  Section top;
  top.meaning = "Logging and timing.";
  top.keys = {
      number("steps_per_print", "null")
          .own_per_rank()
          .above(0)
          .or_infinity()
          .says("Print progress and throughput every N steps; null or Infinity: never.")
          .costs("Reading the loss waits for the device once per line."),
      flag("wall_clock_breakdown", false)
          .own_per_rank()
          .says("Time on the device of forward, backward, reduction and step.")
          .costs("Waits for the device at the end of every step, on rank 0."),
      flag("memory_breakdown", false)
          .own_per_rank()
          .says("Memory before and after each phase.")
          .costs("A line per phase; peaks are per phase."),
      flag("dump_state", false)
          .own_per_rank()
          .says(
              "Log every resolved option with its origin once at start, as capstan config explain "
              "prints it.")
          .costs("A few hundred lines."),
      choice("log_level", "info", {"debug", "info", "warning", "error", "critical"})
          .own_per_rank()
          .ignoring_case()
          .or_null()
          .says("Log level. Progress lines are info, skipped steps are warning.")
          .costs("critical is the same as error."),
      integer("vocabulary_size", "null")
          .at_least(1)
          .no_effect("it is only checked: a warning when it is not a multiple of 8")
          .says("Size of the vocabulary."),
      flag("dataloader_drop_last", false)
          .only_for({Door::program, Door::deepspeed_package}, Standing::no_effect,
                    "you bring your own data loader")
          .says("Leave out the last, smaller batch of an epoch.")
          .costs("true: up to one batch of samples per epoch goes unused."),
      integer("allgather_size", "500000000")
          .at_least(0)
          .no_effect("a unit is gathered as a whole")
          .says("Bucket size that goes with \"zero_optimization\": true."),
  };
  return top;
}

}  // namespace

std::vector<Section> batch_sections() { return {batch_section(), gradient_section()}; }

std::vector<Section> diagnostics_sections() {
  Section throughput;
  throughput.path = "timers.throughput";
  throughput.strict = true;
  throughput.meaning = "The throughput part of the progress lines.";
  throughput.keys = {
      flag("enabled", true)
          .own_per_rank()
          .says("Measure samples per second.")
          .costs("Practically free."),
      flag("synchronized", true)
          .says("Wait for the device before reading the clock.")
          .no_effect("the device's own time is read, without waiting for it"),
  };
  Section timers;
  timers.path = "timers";
  timers.meaning = "Timers.";
  Section comms;
  comms.path = "comms_logger";
  comms.strict = true;
  comms.meaning =
      "Logs collectives: calls, bytes, time and bandwidth per operation. Over NCCL the time is the "
      "device's; elsewhere it runs from the start of an operation until it was waited for.";
  comms.keys = {
      flag("enabled", false)
          .own_per_rank()
          .says("Log collectives.")
          .costs("Times every operation on rank 0, and waits for the device once per report."),
      flag("prof_all", true)
          .own_per_rank()
          .says("Log every operation; false: only those in prof_ops.")
          .costs("Shorter reports."),
      texts("prof_ops", "[]")
          .own_per_rank()
          .says("Operations to log, such as all_gather.")
          .costs("As prof_all."),
      flag("verbose", false)
          .own_per_rank()
          .says("A line per operation of rank 0, at the end of its phase.")
          .costs("Thousands of lines; the step is a little slower."),
      flag("debug", false)
          .own_per_rank()
          .says("Add the unit or purpose of each operation to those lines.")
          .costs("Longer lines."),
  };
  return {report_section(), timers, throughput, comms};
}

}  // namespace capstan::config
