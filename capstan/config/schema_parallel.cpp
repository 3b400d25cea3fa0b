// Pipeline, tensor, expert and sequence parallelism; compilation; the hybrid engine.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section expert_section() {
  Section section;
  section.path = "expert_parallel";
  section.meaning = "Experts spread over ranks.";
  section.feature = Feature::expert_parallel;
  section.gate = "enabled";
  section.open = true;
  section.keys = {
      flag("enabled", false).says("Spread experts."),
      integer("autoep_size", "1").at_least(1).says("Ranks per set of experts."),
      integer("expert_tensor_parallel_size", "1").at_least(1).says("Ranks per expert."),
      text("preset_model", "null").says("Family of models."),
      flag("use_grouped_mm", true).says("One product for all experts."),
      choice("score_func", "auto", {"auto", "softmax", "sigmoid"}).says("Score of a token."),
      choice("score_apply", "auto", {"auto", "pre", "post"}).says("When scores are applied."),
      flag("route_norm", false).or_null().says("Scores add up to one."),
      number("route_scale", "1.0").says("Factor of the scores."),
      integer("top_k", "null").at_least(1).says("Experts per token."),
      integer("num_expert_groups", "null").says("Groups of experts."),
      integer("num_limited_groups", "null").says("Groups per token."),
      choice("combine_impl", "auto", {"auto", "weighted_sum", "legacy_bmm"})
          .says("How outputs meet."),
      number("load_balance_coeff", "null").says("Weight of the balance term."),
  };
  return section;
}

Section compile_section() {
  Section section;
  section.path = "compile";
  section.strict = true;
  section.meaning = "Compilation of the training step.";
  section.feature = Feature::compile;
  section.gate = "deepcompile";
  section.keys = {flag("deepcompile", false).says("Compile sharding into the step."),
                  integer("free_activation_threshold", "10485760").at_least(0).says("Bytes."),
                  texts("passes", "null").says("Passes: z1, z3, autosp, autotp.")};
  for (const char* off :
       {"free_activation", "offload_activation", "offload_opt_states", "symmetric_memory",
        "debug_log", "offload_parameters", "sync_before_reduce", "sync_after_reduce",
        "sync_before_allgather", "sync_after_allgather", "keep_all_input_tensors"}) {
    section.keys.push_back(flag(off, false).says("A switch of the compiler."));
  }
  for (const char* on :
       {"offload_activation_pin_memory", "double_buffer", "keep_int_input_tensors"}) {
    section.keys.push_back(flag(on, true).says("A switch of the compiler."));
  }
  return section;
}

std::vector<Section> tensor_parts() {
  Section section;
  section.path = "tensor_parallel";
  section.strict = true;
  section.meaning = "Layers split over ranks.";
  section.keys = {
      integer("autotp_size", "0")
          .at_least(0)
          .needs(Feature::tensor_parallel)
          .says("So many neighbouring ranks split every layer between them; the number of "
                "data-parallel ranks is that of all ranks divided by it. 0: off.")
          .costs("A part of weights, optimizer state and computing on each rank; two sums over "
                 "these ranks per block and direction, of activations."),
      any("partition_config", "null")
          .needs(Feature::autotp)
          .only_for({Door::capstan_package, Door::deepspeed_package}, Standing::refused,
                    "the program's own models know how they are split")
          .says("Rules that say how layers are split: layer_specs, each with patterns of names and "
                "a partition_type (docs/tensor_parallelism.md); null: by a model's own plan, or by "
                "the names of its layers.")
          .costs("A rule that does not suit the model's code gives other results: compare the loss "
                 "with that of one rank."),
      choice("dtype", "fp16", {"fp32", "fp16", "bf16"})
          .no_effect("the sections bf16 and fp16 say it, as without tensor ranks")
          .says("Dtype."),
      flag("tp_overlap_comm", false)
          .no_effect("gradients of a split layer's input are always summed beside the product that "
                     "gives the weight's")
          .says("Communicate while computing."),
      text("preset_model", "null")
          .no_effect("a model's own plan, or the names of its layers, say how it is split")
          .says("Family of models."),
      any("injection_policy_tuple", "null")
          .refused("it is for inference alone")
          .says("Layers whose output is summed."),
      flag("keep_module_on_host", false)
          .refused("layers are split where the model lies; make the model on the host for that")
          .says("Keep modules in host memory."),
      flag("replace_with_kernel_inject", false)
          .also("kernel_inject")
          .refused("it is for inference alone")
          .says("Replace layers by kernels."),
  };
  Section size;
  size.path = "tensor_parallel.tp";
  size.strict = true;
  size.meaning = "Older names of the tensor axis.";
  size.keys = {integer("tp_size", "1")
                   .at_least(1)
                   .refused("tensor_parallel.autotp_size says it")
                   .says("Ranks per layer."),
               integer("tp_grain_size", "1")
                   .at_least(1)
                   .refused("all parts are equal")
                   .says("Smallest piece.")};
  return {section, size};
}

}  // namespace

std::vector<Section> parallel_sections() {
  Section pipeline;
  pipeline.path = "pipeline";
  pipeline.meaning =
      "Layers spread over ranks one after another. Models of capstan train and Hugging Face models "
      "that "
      "capstan.pipeline.split() knows are cut as `stages` says; a PipelineModule is in stages "
      "already.";
  pipeline.feature = Feature::pipeline;
  pipeline.keys = {
      integer("stages", "null")
          .at_least(1)
          .automatic("as many as the model has")
          .says("How many stages the model is cut into, or has if it is in stages already; null: "
                "as many as it "
                "has, of a model in one piece one. The number of data-parallel ranks is that of "
                "all ranks divided "
                "by it.")
          .costs("A part of weights, optimizer state and computing on each rank; activations "
                 "travel at each cut, "
                 "and stages wait while the pipeline fills and drains."),
      text("partition", "best")
          .no_effect(
              "layers are cut when the model is: PipelineModule(partition_method), "
              "capstan.pipeline.split(cuts); capstan train evens out the times of its stages")
          .says("How layers are spread."),
      flag("seed_layers", false)
          .no_effect(
              "layers are built before an engine reads this: PipelineModule(seed_layers=True) "
              "does it")
          .says("A seed per layer."),
      integer("activation_checkpoint_interval", "0")
          .at_least(0)
          .says("Recompute the activations of so many layers at a time during backward, in each "
                "stage; 0: as "
                "the model says. Hugging Face models take 0 or 1. In capstan train it goes before "
                "activation_checkpointing.number_checkpoints.")
          .costs("Less memory for activations, about a third more compute."),
      flag("pipe_partitioned", true)
          .no_effect("no ranks share a layer of a pipeline, so that nothing could be split")
          .says("Split activations that travel."),
      flag("grad_partitioned", true)
          .no_effect("no ranks share a layer of a pipeline, so that nothing could be split")
          .says("Split gradients that travel."),
      flag("use_reentrant", true)
          .or_null()
          .only_for({Door::capstan_package, Door::deepspeed_package}, Standing::no_effect,
                    "the models of capstan train know one kind")
          .says("Which of torch's two kinds of recomputation; null: true.")
          .costs("true: inputs of the first stage require gradients. false: torch's newer kind."),
  };
  Section mesh;
  mesh.meaning = "Other axes of the mesh.";
  mesh.keys = {
      integer("sequence_parallel_size", "1")
          .at_least(1)
          .needs(Feature::sequence_parallel)
          .says("Ranks that have parts of the same sequences (Ulysses). The batch counts them "
                "once, and so does the mean of gradients.")
          .costs("Larger: longer sequences fit; attention exchanges heads for sequence twice."),
      integer("data_parallel_size", "null")
          .at_least(1)
          .no_effect("it is only checked: ranks / sequence_parallel_size")
          .says("Data-parallel ranks."),
      flag("use_data_before_expert_parallelism", false)
          .needs(Feature::expert_parallel)
          .says("Order of the axes."),
  };
  Section hybrid;
  hybrid.path = "hybrid_engine";
  hybrid.strict = true;
  hybrid.meaning = "Generation inside training.";
  hybrid.feature = Feature::hybrid_engine;
  hybrid.gate = "enabled";
  hybrid.keys = {
      flag("enabled", false).says("Switch between training and generation."),
      integer("max_out_tokens", "512").at_least(1).says("Tokens."),
      integer("inference_tp_size", "1").at_least(1).says("Ranks per layer."),
      flag("release_inference_cache", false).says("Give the cache back."),
      flag("pin_parameters", true).says("Keep parameters whole."),
      integer("tp_gather_partition_size", "8").at_least(1).says("Layers gathered at a time."),
      flag("enable_cuda_graph", false).says("Capture in device graphs."),
  };
  std::vector<Section> all = {pipeline};
  for (Section& section : tensor_parts()) all.push_back(std::move(section));
  all.push_back(expert_section());
  all.push_back(mesh);
  all.push_back(compile_section());
  all.push_back(hybrid);
  return all;
}

}  // namespace capstan::config
