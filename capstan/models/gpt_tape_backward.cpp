#include "capstan/models/gpt_tape.h"

namespace capstan::models {

void GptTape::backward() {
  tape_.begin_backward();
  int gradient = options_.has_output() ? head_backward() : take(sizes_.hidden());
  if (!options_.has_output()) give(last_);
  if (!options_.recompute.enabled) {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      block_backward(blocks_[i], gradient, /*shared=*/false);
      give(blocks_[i].input);
    }
  } else {
    for (std::size_t i = spans_.size(); i-- > 0;) gradient = span_backward(i, gradient);
  }
  if (options_.has_embeddings()) {
    embedding_backward(gradient);
  } else {
    give(gradient);
  }
  give(batch_);
  tape_.end_backward();
}

int GptTape::head_backward() {
  const int picked = take(sizes_.logs());
  int out = take(sizes_.logs());
  give(logs_);
  give(picked);
  if (sizes_.logits() != sizes_.logs()) {
    const int narrow = take(sizes_.logits());
    give(out);
    out = narrow;
  }
  tape_.begin_use(wte_);
  const int hidden = take(sizes_.hidden());
  table_ = take(sizes_.table());
  give(out);
  give(final_);
  if (!options_.has_embeddings()) {
    tape_.gradient(0);
    give(table_);
  }
  tape_.end_use(wte_);
  tape_.begin_use(final_norm_);
  const int gradient = take(sizes_.hidden());
  give(final_stats_);
  give(last_);
  give(hidden);
  come(final_norm_, 0, 2);
  tape_.end_use(final_norm_);
  return gradient;
}

void GptTape::come(int unit, int first, int count) {
  const std::vector<int>& params = params_->units[static_cast<std::size_t>(unit)].params;
  std::vector<int> made;
  for (int i = first; i < first + count; ++i) made.push_back(take(grad_bytes(params.at(i))));
  for (int i = 0; i < count; ++i) {
    tape_.gradient(params.at(static_cast<std::size_t>(first + i)));
    give(made[static_cast<std::size_t>(i)]);
  }
}

std::int64_t GptTape::grad_bytes(int param) const {
  return sizes_.param_bytes(params_->params[static_cast<std::size_t>(param)]);
}

int GptTape::product_backward(int unit, int first, int count, std::int64_t input_bytes, int out,
                              int input) {
  const int gradient = take(input_bytes);
  const std::vector<int>& params = params_->units[static_cast<std::size_t>(unit)].params;
  std::vector<int> made;
  for (int i = first; i < first + count; ++i) {
    made.push_back(take(grad_bytes(params.at(static_cast<std::size_t>(i)))));
  }
  if (input >= 0) give(input);
  if (out >= 0) give(out);
  for (int i = 0; i < count; ++i) {
    tape_.gradient(params.at(static_cast<std::size_t>(first + i)));
    give(made[static_cast<std::size_t>(i)]);
  }
  return gradient;
}

void GptTape::block_backward(const SavedBlock& saved, int& out, bool shared) {
  const int qkv = sizes_.qkv_params();
  const int unit = saved.unit;
  tape_.begin_use(unit);
  int branch = -1;
  if (sizes_.drops()) {
    branch = take(sizes_.hidden());
    give(saved.drawn2);
  }
  const int after_gelu = product_backward(unit, 4 + qkv + 4, 2, sizes_.mlp(), branch, saved.gelu);
  const int before_gelu = take(sizes_.mlp());
  give(saved.wide);
  give(after_gelu);
  const int norm2 =
      product_backward(unit, 4 + qkv + 2, 2, sizes_.hidden(), before_gelu, saved.norm2);
  int attended = take(sizes_.hidden());
  give(saved.attended);
  give(saved.stats2);
  give(norm2);
  come(unit, 4 + qkv, 2);
  if (shared) {  // the sum has memory of its own
    const int sum = take(sizes_.hidden());
    give(attended);
    attended = sum;
  } else {
    give(attended);
    attended = out;
  }
  branch = -1;
  if (sizes_.drops()) {
    branch = take(sizes_.hidden());
    give(saved.drawn1);
  }
  const int mixed = product_backward(unit, 2 + qkv, 2, sizes_.inner(), branch, -1);
  const int parts = take(3 * sizes_.inner());
  tape_.passing(sizes_.attention_backward_workspace());
  give(saved.mixed);
  give(saved.sums);
  give(saved.qkv);
  give(mixed);
  const int joined = take(3 * sizes_.inner());
  give(parts);
  const int norm1 = product_backward(unit, 2, qkv, sizes_.hidden(), joined, saved.norm1);
  const int input = take(sizes_.hidden());
  give(saved.stats1);
  give(norm1);
  come(unit, 0, 2);
  give(input);
  if (shared) out = attended;
  tape_.end_use(unit);
}

int GptTape::span_backward(std::size_t index, int gradient) {
  const recompute::Span& span = spans_[index];
  std::vector<SavedBlock> again;
  if (to_host_) starts_[index] = take(sizes_.hidden());
  int x = starts_[index];
  for (int i = span.begin; i < span.end; ++i) {
    again.push_back(run_block(first_block_ + i, x));
    x = again.back().output;
  }
  int inside = gradient;
  for (std::size_t i = again.size(); i-- > 0;) {
    const bool first = i + 1 == again.size();  // the backward around holds that gradient too
    block_backward(again[i], inside, /*shared=*/first);
    if (i > 0) give(again[i].input);
  }
  give(again.back().output);
  give(starts_[index]);
  give(random_[index]);
  give(gradient);
  return inside;
}

void GptTape::embedding_backward(int gradient) {
  if (sizes_.drops()) {
    const int passed = take(sizes_.hidden());
    give(drawn_);
    give(gradient);
    gradient = passed;
  }
  tape_.begin_use(wte_);
  tape_.begin_use(wpe_);
  const int summed = sizes_.places() < sizes_.hidden() ? take(sizes_.places()) : -1;
  const int looked_up = take(sizes_.table());
  if (summed >= 0) give(gradient);
  if (options_.has_output()) give(looked_up);  // added to that of the output layer
  tape_.gradient(0);
  give(options_.has_output() ? table_ : looked_up);
  const int places = take(grad_bytes(1));
  give(summed >= 0 ? summed : gradient);
  tape_.gradient(1);
  give(places);
  tape_.end_use(wpe_);
  tape_.end_use(wte_);
}

}  // namespace capstan::models
