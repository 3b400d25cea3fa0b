#include <string>
#include <utility>
#include <vector>

#include "capstan/models/gpt_blueprint.h"

namespace capstan::models {
namespace {

// Grows the tree: what is added inside of a part counts for all parts around it.
class CostTree {
 public:
  // Everything up to the next close() is inside of it.
  void open(std::string name, std::string kind, std::string unit = {}) {
    open_.push_back(parts_.size());
    parts_.push_back({.depth = static_cast<int>(open_.size()) - 1,
                      .name = std::move(name),
                      .kind = std::move(kind),
                      .unit = std::move(unit)});
  }
  void close() { open_.pop_back(); }

  void params(std::int64_t count) {
    for (const std::size_t part : open_) parts_[part].parameters += count;
  }
  // Backward makes the gradient of both factors of a product.
  void products(double forward, bool recomputed) {
    for (const std::size_t part : open_) {
      parts_[part].forward_flops += forward;
      parts_[part].backward_flops += 2 * forward;
      if (recomputed) parts_[part].recomputed_flops += forward;
    }
  }

  std::vector<PartCost> take() { return std::move(parts_); }

 private:
  std::vector<PartCost> parts_;
  std::vector<std::size_t> open_;
};

class GptCosts {
 public:
  GptCosts(const GptOptions& options, const PassSize& pass)
      : options_(options),
        tokens_(static_cast<double>(pass.sequences * pass.tokens)),
        pairs_(tokens_ * static_cast<double>(pass.tokens)) {}

  std::vector<PartCost> all() {
    const std::int64_t width = options_.width;
    tree_.open("", "GPT-2");
    tree_.open("transformer", "Transformer");
    if (options_.has_embeddings() || options_.has_output()) {
      tree_.open("wte", "EmbeddingTable", "transformer.wte");
      tree_.params(options_.vocab * width);
      if (options_.has_output()) product(width, options_.padded_vocab(), false);
      tree_.close();
    }
    if (options_.has_embeddings()) {
      tree_.open("wpe", "EmbeddingTable", "transformer.wpe");
      tree_.params(options_.context * width);
      tree_.close();
    }
    for (std::int64_t i = options_.begin_block(); i < options_.end_block(); ++i) block(i);
    if (options_.has_output()) norm("ln_f", "transformer.ln_f");
    tree_.close();
    tree_.close();
    return tree_.take();
  }

 private:
  void product(std::int64_t in, std::int64_t out, bool recomputed) {
    tree_.products(2 * tokens_ * static_cast<double>(in) * static_cast<double>(out), recomputed);
  }

  void norm(const char* name, std::string unit = {}) {
    tree_.open(name, "LayerNorm", std::move(unit));
    tree_.params(2 * options_.width);
    tree_.close();
  }

  void projection(const char* name, std::int64_t in, std::int64_t out) {
    tree_.open(name, "Projection");
    tree_.params(in * out + out);
    product(in, out, options_.recompute.enabled);
    tree_.close();
  }

  void block(std::int64_t index) {
    const std::int64_t width = options_.width;
    const std::string name = "h." + std::to_string(index);
    tree_.open(name, "Block", "transformer." + name);
    norm("ln_1");
    tree_.open("attn", "Attention");
    projection("c_attn", width, 3 * width);
    // Scores, and values weighted by them.
    tree_.products(2 * 2 * pairs_ * static_cast<double>(width), options_.recompute.enabled);
    projection("c_proj", width, width);
    tree_.close();
    norm("ln_2");
    tree_.open("mlp", "Mlp");
    projection("c_fc", width, 4 * width);
    projection("c_proj", 4 * width, width);
    tree_.close();
    tree_.close();
  }

  const GptOptions& options_;
  double tokens_;
  double pairs_;  // of tokens of the same sequence
  CostTree tree_;
};

}  // namespace

std::vector<PartCost> GptBlueprint::part_costs(const PassSize& pass) const {
  return GptCosts(options_, pass).all();
}

}  // namespace capstan::models
