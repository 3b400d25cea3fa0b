// "optimizer": which one, and its parameters per type.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Key learning_rate(const char* fallback) {
  return number("lr", fallback)
      .at_least(0)
      .automatic("Trainer: learning_rate; Accelerate: the optimizer's; elsewhere the default")
      .says("Learning rate.")
      .costs("Too large diverges, too small wastes steps.");
}
Key weight_decay() {
  return number("weight_decay", "0")
      .at_least(0)
      .automatic("Trainer, Accelerate: their own value; elsewhere the default")
      .says("How strongly weights are pulled to zero.")
      .costs("Larger: smaller weights.");
}
Key betas() {
  return numbers("betas", "[0.9, 0.999]")
      .at_least(0)
      .at_most(1)
      .automatic("Trainer: its two betas; elsewhere the default")
      .says("Decay rates of the first and second moment.")
      .costs("Closer to 1: smoother, slower to react.");
}
Key epsilon(const char* fallback) {
  return number("eps", fallback)
      .at_least(0)
      .automatic("Trainer: adam_epsilon; elsewhere the default")
      .says("Added to the denominator.")
      .costs("Larger: smaller steps where gradients are tiny.");
}
Key bias_correction() {
  return flag("bias_correction", true)
      .says("Correct the moments for starting at zero.")
      .costs("false: smaller steps at the beginning.");
}
Key no_max_grad_norm() {
  return number("max_grad_norm", "null")
      .refused("use the top-level key gradient_clipping")
      .says("Clipping inside the optimizer.");
}
Key refused_flag(const char* name, const char* meaning) {
  return flag(name, false).refused("the kernels here do not compute this variant").says(meaning);
}
Key implementation_hint(const char* name) {
  return any(name, "null")
      .no_effect("one fused kernel serves every case")
      .says("Choice of implementation.");
}

Section params_of(std::vector<std::string> types, std::string meaning, std::vector<Key> keys) {
  Section section;
  section.path = "optimizer.params";
  section.when = std::move(types);
  section.meaning = std::move(meaning);
  section.keys = std::move(keys);
  section.keys.push_back(no_max_grad_norm());
  for (const char* name : {"foreach", "fused", "capturable", "differentiable"}) {
    section.keys.push_back(implementation_hint(name));
  }
  return section;
}

Section adam_params() {
  return params_of(
      {"adam", "adamw"}, "Adam and AdamW.",
      {learning_rate("0.001"), betas(), epsilon("1e-8"), weight_decay(), bias_correction(),
       flag("adam_w_mode", true)
           .says("Decoupled weight decay. Adam means AdamW unless this is false; AdamW is always "
                 "decoupled.")
           .costs("false adds the decay to the gradient, where the second moment damps it."),
       flag("torch_adam", false)
           .says("PyTorch's default weight_decay of 0.01 with decoupled decay; in the package "
                 "deepspeed also PyTorch's class instead of the kernel here.")
           .costs("Nothing else changes."),
       refused_flag("amsgrad", "Keep the largest second moment."),
       refused_flag("maximize", "Maximize instead of minimize."),
       flag("set_grad_none", true)
           .no_effect("gradients are released as soon as they are reduced")
           .says("Release gradients after the step."),
       flag("fp32_optimizer_states", true)
           .refused("use capstan.optimizer_state_dtype, which works at every placement")
           .says("Keep the moments in fp32.")});
}

Section sgd_params() {
  return params_of({"sgd"}, "Stochastic gradient descent.",
                   {learning_rate("0.001"), weight_decay(),
                    number("momentum", "0")
                        .at_least(0)
                        .says("Share of the last step that is kept.")
                        .costs("Above 0: one more state of the parameters' size."),
                    number("dampening", "0")
                        .says("Share of the gradient that momentum leaves out.")
                        .costs("Larger: smaller steps."),
                    flag("nesterov", false)
                        .says("Look ahead along the momentum.")
                        .costs("Needs momentum above 0."),
                    refused_flag("maximize", "Maximize instead of minimize.")});
}

Section lion_params() {
  return params_of({"lion"}, "Lion: the sign of a moment.",
                   {learning_rate("0.001"), betas(), weight_decay()});
}

Section adagrad_params() {
  return params_of(
      {"adagrad"}, "Adagrad.",
      {learning_rate("0.01"), epsilon("1e-10"), weight_decay(),
       number("lr_decay", "0")
           .at_least(0)
           .says("Decay of the learning rate per step.")
           .costs("Larger: slower later."),
       number("initial_accumulator_value", "0")
           .at_least(0)
           .says("Where the sum of squares starts.")
           .costs("Larger: smaller first steps."),
       refused_flag("maximize", "Maximize instead of minimize."),
       flag("fp32_optimizer_states", true)
           .refused("use capstan.optimizer_state_dtype, which works at every placement")
           .says("Keep the sum in fp32.")});
}

Section lamb_params() {
  return params_of(
      {"lamb"}, "LAMB: Adam's step, scaled per tensor.",
      {learning_rate("0.001"), betas(), epsilon("1e-8"), weight_decay(), bias_correction(),
       number("max_coeff", "10")
           .above(0)
           .says("Upper bound of the trust ratio.")
           .costs("Larger: bolder steps for large weights."),
       number("min_coeff", "0.01")
           .above(0)
           .says("Lower bound of the trust ratio.")
           .costs("Smaller: more careful steps."),
       flag("eps_inside_sqrt", false)
           .says("sqrt(v + eps) instead of sqrt(v) + eps.")
           .costs("Steps differ where gradients are tiny."),
       refused_flag("amsgrad", "Keep the largest second moment.")});
}

Section later_params(std::vector<std::string> types, Feature feature, std::vector<Key> keys) {
  Section section;
  section.path = "optimizer.params";
  section.when = std::move(types);
  section.meaning = "Parameters of optimizers that are not available yet.";
  section.keys = {learning_rate("0.001"), betas(),           epsilon("1e-8"),
                  weight_decay(),         bias_correction(), no_max_grad_norm()};
  section.feature = feature;
  for (Key& key : keys) section.keys.push_back(std::move(key));
  return section;
}

}  // namespace

std::vector<Section> optimizer_sections() {
  Section section;
  section.path = "optimizer";
  section.meaning = "The optimizer. Without this section the caller brings one.";
  section.keys = {
      choice("type", "",
             {"Adam", "AdamW", "SGD", "Lion", "Adagrad", "Lamb", "OneBitAdam", "OneBitLamb",
              "ZeroOneAdam", "Muon", "MuAdam", "MuAdamW", "MuSGD"})
          .ignoring_case()
          .must()
          .value_needs_feature("OneBitAdam", Feature::one_bit)
          .value_needs_feature("OneBitLamb", Feature::one_bit)
          .value_needs_feature("ZeroOneAdam", Feature::one_bit)
          .value_needs_feature("Muon", Feature::muon)
          .value_needs_feature("MuAdam", Feature::unit_parametrization)
          .value_needs_feature("MuAdamW", Feature::unit_parametrization)
          .value_needs_feature("MuSGD", Feature::unit_parametrization)
          .says("Which optimizer. Other classes of torch.optim can be named in the package "
                "deepspeed; elsewhere pass an object.")
          .costs("State per parameter: SGD 0 or 4 bytes, Lion and Adagrad 4, Adam and LAMB 8."),
      flag("legacy_fusion", false)
          .refused("there is only one fused step")
          .says("An old fused step of upstream."),
      any("torch_adam", "null")
          .no_effect("it works inside \"params\"; in this place DeepSpeed ignores it as well")
          .says("The key of optimizer.params, in the wrong place."),
  };
  Section one_bit = later_params(
      {"onebitadam", "onebitlamb", "zerooneadam"}, Feature::one_bit,
      {integer("freeze_step", "100000").says("Step from which communication is compressed."),
       flag("cuda_aware", false).says("The MPI library takes device memory."),
       text("comm_backend_name", "nccl").says("Backend of the compressed collectives."),
       number("coeff_beta", "0.9").says("Memory of the trust ratio."),
       number("factor_max", "4").says("Bound of the ratio's correction."),
       number("factor_min", "0.5").says("Bound of the ratio's correction."),
       number("factor_threshold", "0.1").says("Largest change of the correction per step."),
       number("max_coeff", "10").says("Upper bound of the trust ratio."),
       number("min_coeff", "0.01").says("Lower bound of the trust ratio."),
       integer("var_freeze_step", "100000").says("Step from which the variance is frozen."),
       integer("var_update_scaler", "16").says("Updates before the variance interval doubles."),
       integer("local_step_scaler", "32678").says("Steps before the local interval doubles."),
       integer("local_step_clipper", "16").says("Largest local interval.")});
  Section muon =
      later_params({"muon"}, Feature::muon,
                   {number("momentum", "0.95").says("Memory of Muon's moment."),
                    number("muon_lr", "0.02").says("Learning rate of the matrices."),
                    number("adam_lr", "0.0003").says("Learning rate of everything else."),
                    text("ns_method", "gram").says("How the matrices are made orthogonal.")});
  Section other;
  other.path = "optimizer.params";
  other.when = {"*"};
  other.meaning = "Another class of torch.optim, which the package deepspeed creates.";
  other.keys = {passed("*").says("Each parameter of its constructor.").costs("As PyTorch says.")};
  Section mup = later_params({"muadam", "muadamw", "musgd"}, Feature::unit_parametrization, {});
  mup.open = true;
  return {section,       adam_params(), sgd_params(), lion_params(), adagrad_params(),
          lamb_params(), one_bit,       muon,         mup,           other};
}

}  // namespace capstan::config
