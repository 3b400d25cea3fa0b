// fp16, bf16, data_types; torch_autocast and amp.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section fp16_section() {
  Section section;
  section.path = "fp16";
  section.strict = true;
  section.meaning = "Parameters in fp16, with loss scaling.";
  section.keys = {
      flag("enabled", false)
          .automatic("Trainer, Accelerate: their mixed precision; elsewhere false")
          .says("Train in fp16.")
          .costs("Half the memory and time; some steps are skipped."),
      flag("auto_cast", false)
          .says("Cast floating-point forward inputs (keyword ones too) to fp16.")
          .costs("One small copy per input."),
      number("loss_scale", "0")
          .at_least(0)
          .says("Fixed loss scale; 0: dynamic.")
          .costs("A fixed scale never adapts: too large skips steps, too small loses gradients."),
      integer("initial_scale_power", "16")
          .at_least(0)
          .at_most(64)
          .says("Dynamic: start at 2^this.")
          .costs("High: the first steps are skipped until it fits."),
      integer("loss_scale_window", "1000")
          .at_least(1)
          .says("Clean steps between doublings.")
          .costs("Shorter: recovers sooner, overflows more often."),
      integer("hysteresis", "2")
          .at_least(1)
          .says("Overflows tolerated before the scale is halved.")
          .costs("Larger: slower to react to a real change."),
      flag("consecutive_hysteresis", false)
          .says("Every clean step refills the tolerance.")
          .costs("Scattered overflows never lower the scale."),
      number("min_loss_scale", "1")
          .above(0)
          .says("An overflow at this scale ends the run.")
          .costs("Lower: tries longer."),
      flag("fp16_master_weights_and_grads", false)
          .says("Master weights and gradient shards in fp16.")
          .costs("4 bytes less per parameter; small updates are lost."),
  };
  return section;
}

Section bf16_section() {
  Section section;
  section.path = "bf16";
  section.aliases = {"bfloat16"};
  section.strict = true;
  section.meaning = "Parameters in bf16; no loss scaling.";
  section.keys = {
      flag("enabled", false)
          .automatic("Trainer, Accelerate: their mixed precision; elsewhere false")
          .says("Train in bf16.")
          .costs("Half the memory and time; 8 bits of mantissa."),
      flag("immediate_grad_update", false)
          .no_effect("gradients are always added to the shard as soon as they arrive")
          .says("Accumulate gradients inside the backward hook."),
      flag("check_grad_overflow", true)
          .says(
              "Skip a step whose gradients contain inf or NaN, at every stage. fp16 always checks.")
          .costs("false saves a pass over the gradient shards and lets a NaN into the parameters."),
      flag("bf16_master_weights_and_grads", false)
          .says("Master weights and gradient shards in bf16.")
          .costs("4 bytes less per parameter; small updates are lost."),
      flag("bf16_optimizer_states", false)
          .says("Moments in bf16; needs bf16_master_weights_and_grads.")
          .costs("4 bytes less per parameter with Adam; less accurate."),
  };
  return section;
}

const std::vector<std::string>& dtype_spellings() {
  static const std::vector<std::string> kSpellings = {
      "fp32", "float32",  "float",         "fp16",          "float16",       "half",
      "bf16", "bfloat16", "torch.float32", "torch.float16", "torch.bfloat16"};
  return kSpellings;
}

}  // namespace

std::vector<Section> precision_sections() {
  Section types;
  types.path = "data_types";
  types.meaning = "Further dtypes, besides those that fp16 and bf16 choose.";
  types.keys = {
      choice("grad_accum_dtype", "null", dtype_spellings())
          .ignoring_case()
          .says("Dtype of gradient shards, at every stage; null: fp32.")
          .costs("16 bits: 2 bytes less per parameter of the shard, sums are rounded."),
      choice("param_dtype", "null", dtype_spellings())
          .ignoring_case()
          .no_effect("it is only checked against fp16.enabled and bf16.enabled")
          .says("Dtype of the parameters."),
      choice("buffer_dtype", "null", dtype_spellings())
          .ignoring_case()
          .says("Cast floating-point buffers; null: leave them.")
          .costs("16 bits: running statistics lose accuracy."),
  };
  Section autocast;
  autocast.path = "torch_autocast";
  autocast.meaning = "Forward under PyTorch's autocast, in the package deepspeed.";
  autocast.feature = Feature::autocast;
  autocast.gate = "enabled";
  autocast.keys = {
      flag("enabled", false)
          .says("Cast single operations.")
          .costs("Faster products; parameters and gradients stay in their own dtype."),
      choice("dtype", "null", dtype_spellings())
          .ignoring_case()
          .says("Dtype of the operations; null: bf16.")
          .costs("fp16 has more digits and less range."),
      texts("lower_precision_safe_modules", "null")
          .says(
              "Classes whose gradients travel in that dtype; null: linear and convolution layers.")
          .costs("Half the traffic of those gradients."),
  };
  Section amp;
  amp.path = "amp";
  amp.meaning = "Apex AMP.";
  amp.feature = Feature::amp;
  amp.gate = "enabled";
  amp.open = true;
  amp.keys = {flag("enabled", false).says("Use Apex AMP."),
              text("opt_level", "O1").says("Level of AMP.")};
  return {fp16_section(), bf16_section(), types, autocast, amp};
}

}  // namespace capstan::config
