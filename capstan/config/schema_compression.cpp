// Compression while training, sparse attention, quantised weights.
#include "capstan/config/schema.h"

namespace capstan::config {
namespace {

Section compression_part(std::string path, std::string meaning, std::vector<Key> keys) {
  Section section;
  section.path = "compression_training." + std::move(path);
  section.meaning = std::move(meaning);
  section.feature = Feature::compression;
  section.keys = std::move(keys);
  if (!section.keys.empty() && section.keys.front().name == "enabled") section.gate = "enabled";
  return section;
}

// A technique: its shared parameters and its groups of modules.
std::vector<Section> technique(const std::string& name, const std::string& meaning,
                               std::vector<Key> shared, std::vector<Key> group) {
  shared.insert(shared.begin(), flag("enabled", false).says(meaning));
  std::vector<Section> parts = {
      compression_part(name, meaning, {}),
      compression_part(name + ".shared_parameters", meaning, std::move(shared)),
      compression_part(name + ".different_groups", "Groups of modules by name.", {}),
      compression_part(name + ".different_groups.*", "One group of modules.",
                       {texts("modules", "[\"*\"]").says("Patterns of module names."),
                        any("related_modules", "null").says("Modules changed along.")}),
      compression_part(name + ".different_groups.*.params", "Parameters of the group.",
                       std::move(group))};
  for (std::size_t i = 2; i < parts.size(); ++i) parts[i].passive = true;
  return parts;
}

std::vector<Key> pruning(const char* method, std::vector<std::string> methods) {
  return {choice("method", method, std::move(methods)).says("How the unimportant is found."),
          integer("schedule_offset", "1000").at_least(0).says("First step.")};
}

Key dense_ratio() {
  return number("dense_ratio", "null").at_least(0).at_most(1).says("Share kept.");
}

std::vector<Section> quantization_techniques() {
  std::vector<Section> all = technique(
      "weight_quantization", "Train with quantised weights.",
      {flag("quantizer_kernel", false).says("Fused kernel."),
       integer("schedule_offset", "0").at_least(0).says("First step."),
       integer("quantize_groups", "1").at_least(1).says("Groups per matrix."),
       flag("quantize_verbose", false).says("Lines."),
       choice("quantization_type", "symmetric", {"symmetric", "asymmetric"}).says("Kind."),
       choice("rounding", "nearest", {"nearest", "stochastic"}).says("Rounding."),
       flag("quantize_weight_in_forward", false).says("In forward instead of in the step.")},
      {integer("start_bits", "null").says("Bits at first."),
       integer("target_bits", "null").says("Bits at last."),
       integer("quantization_period", "1").at_least(1).says("Steps per bit.")});
  all.push_back(
      compression_part("weight_quantization.shared_parameters.fp16_mixed_quantize",
                       "A mixture of fp16 and quantised weights.",
                       {flag("enabled", false).says("Mix."),
                        number("quantize_change_ratio", "0.001").says("Change per step.")}));
  for (Section& part : technique(
           "activation_quantization", "Train with quantised activations.",
           {choice("quantization_type", "symmetric", {"symmetric", "asymmetric"}).says("Kind."),
            choice("range_calibration", "dynamic", {"dynamic", "static"})
                .says("How ranges are found."),
            integer("schedule_offset", "1000").at_least(0).says("First step.")},
           {integer("bits", "null").says("Bits.")})) {
    all.push_back(std::move(part));
  }
  return all;
}

std::vector<Section> pruning_techniques() {
  std::vector<Key> sparse = pruning("l1", {"l1", "topk", "snip_momentum"});
  for (Key& key : std::vector<Key>{
           text("block_pattern", "4x1").says("Shape of pruned blocks."),
           number("dense_ratio", "0.1").above(0).at_most(1).says("Share kept."),
           integer("schedule_offset_stride", "1").at_least(1).says("Steps between prunings."),
           integer("schedule_offset_end", "null").at_least(0).says("Last step."),
           texts("excluded_modules", "[]").says("Modules left alone.")}) {
    sparse.push_back(key);
  }
  std::vector<Key> head = pruning("topk", {"topk"});
  head.push_back(integer("num_heads", "null").at_least(1).says("Heads."));
  std::vector<Section> all;
  const auto add = [&](std::vector<Section> parts) {
    for (Section& part : parts) all.push_back(std::move(part));
  };
  add(technique("sparse_pruning", "Prune single weights.", std::move(sparse), {dense_ratio()}));
  add(technique("row_pruning", "Prune rows.", pruning("l1", {"l1", "topk"}), {dense_ratio()}));
  add(technique("head_pruning", "Prune heads.", std::move(head), {dense_ratio()}));
  add(technique("channel_pruning", "Prune channels.", pruning("l1", {"l1", "topk"}),
                {dense_ratio()}));
  return all;
}

Section sparse_attention_section() {
  Section section;
  section.path = "sparse_attention";
  section.meaning = "Attention over a pattern of blocks.";
  section.feature = Feature::sparse_attention;
  section.presence = Presence::on_when_filled;
  section.keys = {
      choice("mode", "fixed", {"dense", "fixed", "variable", "bigbird", "bslongformer"})
          .says("Pattern."),
      integer("block", "16").at_least(1).says("Size of a block."),
      flag("different_layout_per_head", false).says("A pattern per head."),
      integer("num_local_blocks", "4").at_least(0).says("Local blocks."),
      integer("num_global_blocks", "1").at_least(0).says("Global blocks."),
      choice("attention", "bidirectional", {"bidirectional", "unidirectional"}).says("Direction."),
      flag("horizontal_global_attention", false).says("Global blocks see all."),
      integer("num_different_global_patterns", "1").at_least(1).says("Global patterns."),
      integer("num_random_blocks", "0").at_least(0).says("Random blocks."),
      numbers("local_window_blocks", "[4]").says("Local windows."),
      numbers("global_block_indices", "[0]").says("Global blocks, first."),
      numbers("global_block_end_indices", "null").says("Global blocks, last."),
      integer("num_sliding_window_blocks", "3").at_least(0).says("Sliding window."),
  };
  return section;
}

}  // namespace

std::vector<Section> compression_sections() {
  Section top;
  top.path = "compression_training";
  top.meaning = "Make the model smaller while it trains.";
  top.feature = Feature::compression;
  std::vector<Section> all = {std::move(top)};
  for (Section& part : quantization_techniques()) all.push_back(std::move(part));
  for (Section& part : pruning_techniques()) all.push_back(std::move(part));
  all.push_back(
      compression_part("layer_reduction", "Fewer layers, taught by more.",
                       {flag("enabled", false).says("Reduce layers."),
                        integer("keep_number_layer", "null").says("Layers kept."),
                        text("module_name_prefix", "null").says("Name of the layers."),
                        any("teacher_layer", "null").says("Layers of the teacher."),
                        texts("other_module_name", "null").says("Modules copied as they are.")}));
  all.push_back(sparse_attention_section());
  Section weights;
  weights.path = "weight_quantization";
  weights.strict = true;
  weights.meaning = "Quantised weights for inference.";
  weights.feature = Feature::weight_quantization;
  weights.gate = "enabled";
  weights.keys = {flag("enabled", true).says("Quantise; on when the section holds anything."),
                  integer("num_bits", "8").says("Bits."),
                  choice("q_type", "symmetric", {"symmetric", "asymmetric"}).says("Kind."),
                  integer("q_groups", "1").at_least(1).says("Groups."),
                  any("quantized_initialization", "{}").says("At construction."),
                  any("post_init_quant", "{}").says("After construction.")};
  all.push_back(std::move(weights));
  return all;
}

}  // namespace capstan::config
