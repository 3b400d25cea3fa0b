#include "capstan/models/gpt_sizes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace capstan::models {
namespace {

constexpr std::int64_t kFloat = 4;

// What attention on the CPU works in, for each thread: a tile of scores in fp32 and its sums.
std::int64_t cpu_attention_bytes(std::int64_t tokens, std::int64_t head, std::int64_t element) {
  const std::int64_t rows = std::min<std::int64_t>(tokens, tokens >= 768   ? 256
                                                           : tokens >= 192 ? 64
                                                                           : 32);
  const std::int64_t columns = std::min<std::int64_t>(tokens, 512);
  const std::int64_t narrow = element < kFloat ? rows * columns * element : 0;
  return kFloat * rows * (columns + 2 + head) + narrow;
}

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) all *= size;
  return all;
}

}  // namespace

GptSizes::GptSizes(const GptOptions& options, const TapeOptions& how)
    : on_gpu(how.on_gpu), tensor(how.tensor), dropout_(options.dropout > 0) {
  element_ = size_bytes(how.dtype);
  const std::int64_t width = options.width;
  const std::int64_t tokens = (how.tokens + how.sequence - 1) / how.sequence;
  const std::int64_t all = how.samples * tokens;
  const std::int64_t heads = (options.heads + how.tensor - 1) / how.tensor;
  const std::int64_t head = width / options.heads;
  batch_ = 2 * how.samples * tokens * 8 + tokens * 8;
  hidden_ = all * width * element_;
  places_ = tokens * width * element_;
  inner_ = all * heads * head * element_;
  mlp_ = all * 4 * width / how.tensor * element_;
  stats_ = 2 * all * (how.on_gpu ? kFloat : element_);
  mask_ = all * width * (how.on_gpu ? 1 : element_);
  // Each query looks at all keys of the whole sequence.
  const std::int64_t rows = how.samples * heads * tokens;
  attention_saved_ = rows * kFloat;
  if (!how.on_gpu) {
    attention_workspace_ = how.threads * cpu_attention_bytes(how.tokens, head, element_);
    attention_backward_workspace_ = attention_workspace_;
    if (dropout_) {  // without a fused kernel: scaled queries and keys, weights, mask, the product
      attention_saved_ = 2 * inner_ + 3 * rows * how.tokens * element_;
      attention_workspace_ = rows * how.tokens * element_;
      attention_backward_workspace_ = 2 * rows * how.tokens * element_;
    }
  } else {
    // Of the fused backward: sums of products per row, and queries' gradients in fp32.
    attention_backward_workspace_ = rows * kFloat + inner_ / element_ * kFloat;
  }
  const std::int64_t vocab = (options.padded_vocab() + how.tensor - 1) / how.tensor;
  logits_ = all * vocab * element_;
  logs_ = all * vocab * kFloat;
  converts_logits_ = element_ < kFloat && !(how.on_gpu && how.dtype == DType::fp16);
  table_ = vocab * width * element_;
}

std::int64_t GptSizes::param_bytes(const PaperParam& param) const {
  return product(param.sizes) * element_;
}

GptLayout gpt_layout(const GptOptions& options, const GptSizes& sizes) {
  GptLayout layout;
  Paper& paper = layout.paper;
  const std::int64_t width = options.width;
  const std::int64_t ranks = sizes.tensor;
  const auto open = [&](std::string name) { paper.units.push_back({std::move(name), {}}); };
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    paper.units.back().params.push_back(static_cast<int>(paper.params.size()));
    paper.params.push_back({paper.units.back().name + "." + name, std::move(shape)});
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          std::int64_t bias) {
    add(name + ".weight", {in, out});
    add(name + ".bias", {bias});
  };
  const auto norm = [&](const std::string& name) {
    add(name + "weight", {width});
    add(name + "bias", {width});
  };
  if (options.has_embeddings() || options.has_output()) {
    open("transformer.wte");
    add("weight", {(options.padded_vocab() + ranks - 1) / ranks, width});
    const bool pads = options.vocab != options.padded_vocab();
    if (pads) paper.buffer_bytes = options.padded_vocab() * kFloat;
  }
  if (options.has_embeddings()) {
    layout.wpe = static_cast<int>(paper.units.size());
    open("transformer.wpe");
    add("weight", {options.context, width});
  }
  layout.first_block = static_cast<int>(paper.units.size());
  const std::int64_t part = width / ranks;
  for (std::int64_t i = options.begin_block(); i < options.end_block(); ++i) {
    open("transformer.h." + std::to_string(i));
    norm("ln_1.");
    if (ranks == 1) {
      linear("attn.c_attn", width, 3 * width, 3 * width);
    } else {
      for (const char* const which : {"query", "key", "value"}) {
        linear(std::string("attn.c_attn.") + which, width, part, part);
      }
    }
    linear("attn.c_proj", part, width, width);
    norm("ln_2.");
    linear("mlp.c_fc", width, 4 * part, 4 * part);
    linear("mlp.c_proj", 4 * part, width, width);
  }
  if (options.has_output()) {
    layout.final_norm = static_cast<int>(paper.units.size());
    open("transformer.ln_f");
    norm("");
  }
  return layout;
}

}  // namespace capstan::models
