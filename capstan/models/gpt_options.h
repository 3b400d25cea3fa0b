// The size of a GPT-2 style model and the figures that follow from it. Plain values, no libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capstan/models/blueprint.h"
#include "capstan/recompute/options.h"

namespace capstan::models {

struct GptOptions {
  std::int64_t vocab = 50257;   // as in files; inside, rows are added up to padded_vocab()
  std::int64_t context = 1024;  // longest sequence, in tokens
  std::int64_t width = 768;     // of the residual stream
  std::int64_t layers = 12;
  std::int64_t heads = 12;  // divides width
  double dropout = 0.1;     // of embeddings, attention and residual branches
  double layer_norm_epsilon = 1e-5;
  std::uint64_t seed = 1234;  // of the initial weights
  // Until they are loaded, weights are zeros that take no memory; for models larger than it.
  bool weights_loaded_later = false;
  std::optional<BlockRange> part;  // a stage of a pipeline has only these; unset: all
  recompute::Options recompute;    // which activations are computed again in backward

  std::int64_t begin_block() const { return part ? part->begin : 0; }
  std::int64_t end_block() const { return part ? part->end : layers; }
  bool has_embeddings() const { return !part || part->embeddings; }
  bool has_output() const { return !part || part->output; }

  // A multiple of 128: logits GEMMs with an odd row count run several times slower on GPUs.
  std::int64_t padded_vocab() const { return (vocab + 127) / 128 * 128; }
  bool operator==(const GptOptions&) const = default;
};

// gpt2-tiny (for tests), gpt2-nano and gpt2-mini (train on a laptop), and the published sizes gpt2
// (124M), gpt2-medium, gpt2-large, gpt2-xl (1.5B). Throws ConfigError that names the nearest.
GptOptions gpt_by_name(const std::string& name);
std::vector<std::string> gpt_names();

// Throws ConfigError when no model can have these sizes.
void check(const GptOptions& options);

// Trainable elements, tied weights once, without the rows added inside.
std::int64_t parameter_count(const GptOptions& options);

// Forward and backward of one token in a sequence of `tokens`: 6 N + 12 L h S. Activations
// computed again are not counted: it is the work the model needs, not the work we did.
double flops_per_token(const GptOptions& options, std::int64_t tokens);

}  // namespace capstan::models
