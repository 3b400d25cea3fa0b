#include "capstan/models/gpt_blueprint.h"

#include <utility>

#include <fmt/format.h>

#include "capstan/json/writer.h"

namespace capstan::models {
namespace {

// Anything else is another model than ours.
void expect(const ConfigFile& config, const char* key, const std::vector<json::Value>& allowed) {
  if (config.is_one_of(key, allowed)) return;
  config.refuse(fmt::format("\"{}\" has a value that Capstan's GPT-2 does not support", key),
                "use a GPT-2 with gelu_new, tied weights and an MLP four times as wide");
}

// To generate from: without dropout, and the weights come from a file.
GptOptions read_options(const ConfigFile& config) {
  GptOptions options;
  options.vocab = config.size("vocab_size");
  options.context = config.size("n_positions");
  options.width = config.size("n_embd");
  options.layers = config.size("n_layer");
  options.heads = config.size("n_head");
  options.dropout = 0;
  options.weights_loaded_later = true;
  if (const json::Value* const epsilon = config.find("layer_norm_epsilon")) {
    if (epsilon->real() != nullptr) options.layer_norm_epsilon = *epsilon->real();
  }
  expect(config, "activation_function",
         {json::Value("gelu_new"), json::Value("gelu_pytorch_tanh")});
  expect(config, "n_inner", {json::Value(4 * options.width)});
  expect(config, "tie_word_embeddings", {json::Value(true)});
  expect(config, "scale_attn_weights", {json::Value(true)});
  expect(config, "scale_attn_by_inverse_layer_idx", {json::Value(false)});
  return options;
}

}  // namespace

GptBlueprint::GptBlueprint(const GptOptions& options) : options_(options) { check(options_); }

GptBlueprint::GptBlueprint(const ConfigFile& config) : GptBlueprint(read_options(config)) {}

Sizes GptBlueprint::sizes() const {
  return {options_.vocab, options_.context, options_.width, options_.layers, options_.heads};
}

std::shared_ptr<const Blueprint> GptBlueprint::with(const Changes& changes) const {
  GptOptions options = options_;
  options.vocab = changes.vocab.value_or(options.vocab);
  options.context = changes.context.value_or(options.context);
  options.width = changes.width.value_or(options.width);
  options.layers = changes.layers.value_or(options.layers);
  options.heads = changes.heads.value_or(options.heads);
  options.dropout = changes.dropout.value_or(options.dropout);
  options.seed = changes.seed.value_or(options.seed);
  options.weights_loaded_later =
      changes.weights_loaded_later.value_or(options.weights_loaded_later);
  options.recompute = changes.recompute.value_or(options.recompute);
  if (changes.part) options.part = changes.part;
  return std::make_shared<GptBlueprint>(options);
}

std::vector<double> GptBlueprint::layer_costs(std::int64_t tokens) const {
  const auto width = static_cast<double>(options_.width);
  const double block = 12 * width * width + static_cast<double>(tokens) * width;
  std::vector<double> costs(static_cast<std::size_t>(options_.layers) + 2, block);
  costs.front() = 0;  // a look-up
  costs.back() = static_cast<double>(options_.padded_vocab()) * width;
  return costs;
}

// In units of one hidden vector of a token: two norms read and write one each, two additions two
// and one, GELU four and four; backward likewise, with the sums for biases. Nothing is fused. Of
// the output layer: logits become fp32, their logarithms of softmax, and the same backwards.
Moved GptBlueprint::moved_bytes(DType dtype) const {
  const auto width = static_cast<double>(options_.width);
  const auto layers = static_cast<double>(options_.layers);
  const auto vocab = static_cast<double>(options_.padded_vocab());
  const auto element = static_cast<double>(size_bytes(dtype));
  const bool wide = dtype == DType::fp32;
  const double products = layers * 12 * width * width;
  return {.forward = 18 * width * element * layers + (wide ? 12 : 18) * vocab,
          .backward = 39 * width * element * layers + (wide ? 16 : 22) * vocab,
          .operations_forward = 14 * layers + 8,
          .operations_backward = 40 * layers + 12,
          .blocks = products / (products + vocab * width)};
}

FileNames GptBlueprint::file_names() const {
  return {.root = "transformer.",
          .blocks = "h.",
          .tied = {{"lm_head.weight", "transformer.wte.weight"}}};
}

std::string GptBlueprint::config_json(std::int64_t end_of_text) const {
  json::Value config{json::Object{}};
  json::Array architectures;
  architectures.emplace_back("GPT2LMHeadModel");
  config.add("architectures", json::Value(std::move(architectures)))
      .add("model_type", json::Value("gpt2"))
      .add("vocab_size", json::Value(options_.vocab))
      .add("n_positions", json::Value(options_.context))
      .add("n_embd", json::Value(options_.width))
      .add("n_layer", json::Value(options_.layers))
      .add("n_head", json::Value(options_.heads))
      .add("activation_function", json::Value("gelu_new"))
      .add("layer_norm_epsilon", json::Value(options_.layer_norm_epsilon))
      .add("embd_pdrop", json::Value(options_.dropout))
      .add("attn_pdrop", json::Value(options_.dropout))
      .add("resid_pdrop", json::Value(options_.dropout))
      .add("bos_token_id", json::Value(end_of_text))
      .add("eos_token_id", json::Value(end_of_text))
      .add("tie_word_embeddings", json::Value(true));
  return json::write(config) + "\n";
}

std::vector<ChosenSize> GptBlueprint::chosen_sizes() const {
  return {{"n_embd", "--width", options_.width},
          {"n_layer", "--layers", options_.layers},
          {"n_head", "--heads", options_.heads},
          {"n_positions", "--context", options_.context},
          {"vocab_size", "--tokenizer", options_.vocab}};
}

std::vector<WeightSize> GptBlueprint::weight_sizes() const {
  return {{"vocab_size", options_.vocab, "wte.weight", 0},
          {"n_embd", options_.width, "wte.weight", 1},
          {"n_positions", options_.context, "wpe.weight", 0},
          {"n_layer", options_.layers, "", 0}};
}

}  // namespace capstan::models
