// "zero_optimization": how state is split over ranks.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

std::vector<Key> stage_keys() {
  return {
      integer("stage", "0")
          .at_least(0)
          .at_most(3)
          .automatic("Accelerate: its plugin's stage; elsewhere 0")
          .says("0: nothing is sharded. 1: optimizer state. 2: also gradients. 3: also parameters.")
          .costs("Each stage saves memory. Traffic per step grows at 2 with accumulation and at 3 "
                 "with "
                 "every use of the parameters."),
      flag("overlap_comm", true)
          .or_null()
          .says("Communicate while computing; null: yes, at every stage.")
          .costs("One more unit in flight; false makes a profile easier to read."),
      integer("sub_group_size", "1000000000")
          .own_per_rank()
          .at_least(1)
          .says("With an offloaded optimizer: how many elements are updated before their new "
                "values are sent, at most 8388608.")
          .costs("Smaller: smaller staging buffers, more and shorter copies."),
      flag("ignore_unused_parameters", true)
          .says("Accept parameters without a gradient; false: an error names them, at every stage.")
          .costs("false finds parts of a model that do not learn."),
      flag("log_trace_cache_warnings", false)
          .own_per_rank()
          .says("Log when the order of use differs from the recorded one.")
          .costs("A line per change."),
      flag("load_from_fp32_weights", true)
          .says("Load the saved fp32 master weights of a checkpoint; false: make them from the "
                "16-bit weights.")
          .costs("false rounds the masters to 16 bits once."),
      flag("enable_sanity_checks", false)
          .says("Compare the plan of every unit across ranks. If set to false, a write into "
                "parameters that are gathered without a modifier rank is a warning instead of an "
                "error.")
          .costs("One small collective per unit and use: for debugging."),
  };
}

std::vector<Key> stage3_keys() {
  return {
      integer("stage3_prefetch_bucket_size", "50000000")
          .at_least(0)
          .also("prefetch_bucket_size")
          .automatic("0.9 x hidden_size^2 where the model's hidden size is known, else the default")
          .says(
              "Elements gathered ahead of use, counted in bytes of the parameters' dtype; 0: none.")
          .costs("Larger: fewer stalls, more memory."),
      integer("stage3_param_persistence_threshold", "100000")
          .at_least(0)
          .also("param_persistence_threshold")
          .automatic("10 x hidden_size where the model's hidden size is known, else the default")
          .says("Parameters up to this many elements stay whole.")
          .costs("Larger: fewer small messages, more memory at stage 3."),
      integer("stage3_model_persistence_threshold", "9223372036854775807")
          .at_least(0)
          .also("model_persistence_threshold")
          .says("Limit on the total number of elements that stay whole.")
          .costs("Smaller: less memory."),
      integer("stage3_max_live_parameters", "1000000000")
          .at_least(0)
          .also("max_live_parameters")
          .says("Elements that may be whole at a time, counted in bytes; prefetch stops there.")
          .costs("Smaller: less memory, more waiting."),
      integer("stage3_max_reuse_distance", "1000000000")
          .at_least(0)
          .also("max_reuse_distance")
          .says("A unit that is used again within this many elements stays whole.")
          .costs("Larger: fewer gathers, more memory."),
      integer("stage3_module_granularity_threshold", "0")
          .at_least(0)
          .also("module_granularity_threshold")
          .says("Modules with up to this many parameters per layer form one unit; 0: off.")
          .costs("Larger units: fewer gathers, but more parameters are whole at a time."),
  };
}

// Keys that the one layout makes needless.
std::vector<Key> needless_keys() {
  const char* unit = "a unit's flat buffer is what is reduced and gathered at a time";
  return {
      flag("contiguous_gradients", true)
          .no_effect("a unit's gradients always lie in one flat buffer")
          .says("Copy gradients together."),
      flag("reduce_scatter", true)
          .no_effect("every stage reduces with the same reduce-scatter")
          .says("Reduce-scatter instead of all-reduce."),
      integer("reduce_bucket_size", "500000000")
          .at_least(0)
          .automatic("hidden_size^2; no effect here")
          .no_effect(unit)
          .says("Elements reduced at a time."),
      flag("use_multi_rank_bucket_allreduce", true)
          .no_effect(unit)
          .says("One all-reduce per bucket instead of a reduce per owner."),
      flag("allgather_partitions", true).no_effect(unit).says("All-gather instead of broadcasts."),
      integer("allgather_bucket_size", "500000000")
          .at_least(0)
          .no_effect(unit)
          .says("Elements gathered at a time."),
      flag("grad_hooks", true)
          .no_effect("gradients are always reduced from backward hooks")
          .says("Reduce from hooks."),
  };
}

// Keys for what is always done the good way here.
std::vector<Key> settled_keys() {
  return {
      flag("elastic_checkpoint", false)
          .no_effect("every checkpoint loads at any world size")
          .says("Save optimizer state without padding."),
      flag("round_robin_gradients", false)
          .no_effect("shards are equal, and every rank copies its own")
          .says("Spread gradient copies over ranks."),
      flag("stage3_use_all_reduce_for_fetch_params", false)
          .also("use_all_reduce_for_fetch_params")
          .no_effect("a gather is always one all-gather of the unit")
          .says("Gather by all-reduce."),
      flag("stage3_allgather_sequential", false)
          .also("allgather_sequential")
          .no_effect("a gather is always one all-gather of the unit")
          .says("Gather parameters one by one."),
      flag("stage3_gather_16bit_weights_on_model_save", false)
          .also("gather_16bit_weights_on_model_save")
          .formerly("stage3_gather_fp16_weights_on_model_save")
          .automatic("Accelerate: its plugin's value; elsewhere false")
          .no_effect("saving the weights always gathers and writes them")
          .says("Gather weights when the model is saved."),
      flag("memory_efficient_linear", true)
          .no_effect("gathered weights are released between forward and backward for every layer")
          .says("A linear layer that gathers again in backward."),
      flag("pipeline_loading_checkpoint", false)
          .no_effect("loading streams in memory of one tensor")
          .says("Load checkpoints one rank after another."),
      flag("override_module_apply", true)
          .no_effect("initialisers always see whole parameters")
          .says("Gather around module-wide initialisers."),
      flag("cpu_offload_use_pin_memory", false)
          .or_null()
          .no_effect("use offload_optimizer.pin_memory and offload_param.pin_memory")
          .says("Deprecated."),
      flag("legacy_stage1", false)
          .refused("there is one stage 1")
          .says("An old stage 1 of upstream."),
  };
}

std::vector<Key> later_keys() {
  return {
      integer("zero_hpz_partition_size", "1")
          .at_least(0)
          .needs(Feature::near_copy)
          .says("Stage 3: so many neighbouring ranks, those of a node say, keep a second copy of "
                "the parameters, cut between them. Gathers after the first of a step stay among "
                "them. 0 or 1: off.")
          .costs("Less traffic between nodes; the parameters' bytes divided by this, on each "
                 "rank."),
      flag("zero_quantized_weights", false)
          .needs(Feature::zero_plus_plus)
          .says("Gather int8 weights."),
      flag("zero_quantized_nontrainable_weights", false)
          .needs(Feature::zero_plus_plus)
          .says("Keep frozen shards in int8."),
      flag("zero_quantized_gradients", false)
          .needs(Feature::zero_plus_plus)
          .says("Reduce int4 gradients."),
      integer("mics_shard_size", "-1")
          .at_least(-1)
          .needs(Feature::mics)
          .says("All that the stage shards is cut over so many neighbouring ranks; these groups "
                "are replicas of each other, and sum their gradients once a step. -1 or 0: over "
                "all ranks.")
          .costs("Smaller: less traffic between nodes, more memory on each rank."),
      flag("mics_hierarchical_params_gather", false)
          .needs(Feature::mics_two_level_gather)
          .says("Two-level gather."),
      flag("save_muon_momentum_buffer_in_memory", false)
          .needs(Feature::muon)
          .says("Keep Muon's moment out of nvme."),
      flag("cpu_offload", false)
          .or_null()
          .needs(Feature::optimizer_on_host)
          .says("Deprecated: offload_optimizer with device cpu.")
          .costs("The same."),
      flag("cpu_offload_param", false)
          .or_null()
          .needs(Feature::params_on_host)
          .says("Deprecated: offload_param with device cpu.")
          .costs("The same."),
  };
}

}  // namespace

std::vector<Section> zero_sections() {
  Section zero;
  zero.path = "zero_optimization";
  zero.strict = true;
  zero.meaning =
      "How state is sharded over data-parallel ranks. The loss and the parameters are the same at "
      "every stage. true is an old spelling of {\"stage\": 1}.";
  for (auto part : {stage_keys(), stage3_keys(), needless_keys(), settled_keys(), later_keys()}) {
    for (Key& key : part) zero.keys.push_back(std::move(key));
  }
  Section leaf;
  leaf.path = "zero_optimization.leaf_module";
  leaf.strict = true;
  leaf.meaning = "Modules that form one unit together with everything below them.";
  leaf.keys = {
      texts("classes", "[]")
          .says("Class names.")
          .costs("Fewer, larger gathers; needed where the use of "
                 "sub-modules differs between ranks."),
      texts("names", "[]").says("Dotted names in the model.").costs("As classes."),
      texts("name_suffixes", "[]").says("Ends of dotted names.").costs("As classes."),
  };
  Section loco;
  loco.path = "zero_optimization.zeropp_loco_param";
  loco.meaning = "Error feedback for quantised gradients.";
  loco.feature = Feature::zero_plus_plus;
  loco.keys = {number("err_beta", "0.8").says("Memory of the error."),
               integer("reset_T", "1024").says("Uses before the error is cleared.")};
  return {zero, leaf, loco};
}

}  // namespace capstan::config
