#include "capstan/models/gpt_tape.h"

#include <utility>

namespace capstan::models {
namespace {

// Of the CPU's generator.
constexpr std::int64_t kRandomStateBytes = 5056;

}  // namespace

Paper GptTape::write() {
  const GptLayout layout = gpt_layout(options_, sizes_);
  wte_ = layout.wte;
  wpe_ = layout.wpe;
  first_block_ = layout.first_block;
  final_norm_ = layout.final_norm;
  params_ = &layout.paper;
  Paper paper = layout.paper;
  forward();
  paper.saved_bytes = tape_.held_bytes() - host_bytes_;
  paper.saved_host_bytes = host_bytes_;
  backward();
  paper.tape = std::move(tape_).events();
  return paper;
}

void GptTape::forward() {
  batch_ = take(sizes_.batch_bytes());
  int x = options_.has_embeddings() ? embed() : take(sizes_.hidden());
  const recompute::Options& again = options_.recompute;
  const int count = static_cast<int>(options_.end_block() - options_.begin_block());
  if (!again.enabled) {
    for (int i = 0; i < count; ++i) {
      blocks_.push_back(run_block(first_block_ + i, x));
      x = blocks_.back().output;
    }
  } else {
    spans_ = recompute::cut_into_spans(count, again.checkpoint_count);
    for (const recompute::Span& span : spans_) {
      starts_.push_back(x);
      random_.push_back(take(kRandomStateBytes));
      for (int i = span.begin; i < span.end; ++i)
        x = pass_block(first_block_ + i, x, i > span.begin);
      if (again.to_host && sizes_.on_gpu) {
        give(starts_.back());
        host_bytes_ += sizes_.hidden();
      }
    }
    to_host_ = again.to_host && sizes_.on_gpu;
  }
  last_ = x;
  if (options_.has_output()) head();
}

int GptTape::embed() {
  tape_.begin_use(wpe_);
  const int places = take(sizes_.places());
  tape_.end_use(wpe_);
  tape_.begin_use(wte_);
  const int tokens = take(sizes_.hidden());
  tape_.end_use(wte_);
  const int sum = take(sizes_.hidden());
  give(tokens);
  give(places);
  return sizes_.drops() ? drop(sum, drawn_) : sum;
}

int GptTape::drop(int x, int& mask) {
  mask = take(sizes_.mask());
  const int kept = take(sizes_.hidden());
  give(x);
  return kept;
}

SavedBlock GptTape::run_block(int unit, int x) {
  SavedBlock saved{.unit = unit, .input = x};
  tape_.begin_use(unit);
  saved.norm1 = take(sizes_.hidden());
  saved.stats1 = take(sizes_.stats());
  saved.qkv = take(3 * sizes_.inner());
  saved.sums = take(sizes_.attention_saved());
  tape_.passing(sizes_.attention_workspace());
  saved.mixed = take(sizes_.inner());
  int branch = take(sizes_.hidden());
  if (sizes_.drops()) branch = drop(branch, saved.drawn1);
  saved.attended = take(sizes_.hidden());
  give(branch);
  saved.norm2 = take(sizes_.hidden());
  saved.stats2 = take(sizes_.stats());
  saved.wide = take(sizes_.mlp());
  saved.gelu = take(sizes_.mlp());
  branch = take(sizes_.hidden());
  if (sizes_.drops()) branch = drop(branch, saved.drawn2);
  saved.output = take(sizes_.hidden());
  give(branch);
  tape_.end_use(unit);
  return saved;
}

int GptTape::pass_block(int unit, int x, bool own) {
  tape_.begin_use(unit);
  const int norm1 = take(sizes_.hidden());
  tape_.passing(sizes_.stats());
  const int qkv = take(3 * sizes_.inner());
  const int sums = take(sizes_.attention_saved());
  tape_.passing(sizes_.attention_workspace());
  const int mixed = take(sizes_.inner());
  give(sums);
  give(qkv);
  int branch = take(sizes_.hidden());
  give(mixed);
  int mask = 0;
  if (sizes_.drops()) {
    branch = drop(branch, mask);
    give(mask);
  }
  const int attended = take(sizes_.hidden());
  give(branch);
  give(norm1);
  const int norm2 = take(sizes_.hidden());
  tape_.passing(sizes_.stats());
  const int wide = take(sizes_.mlp());
  const int gelu = take(sizes_.mlp());
  branch = take(sizes_.hidden());
  give(wide);
  give(gelu);
  if (sizes_.drops()) {
    branch = drop(branch, mask);
    give(mask);
  }
  const int output = take(sizes_.hidden());
  give(branch);
  give(norm2);
  give(attended);
  if (own) give(x);
  tape_.end_use(unit);
  return output;
}

void GptTape::head() {
  tape_.begin_use(final_norm_);
  final_ = take(sizes_.hidden());
  final_stats_ = take(sizes_.stats());
  tape_.end_use(final_norm_);
  tape_.begin_use(wte_);
  const int logits = take(sizes_.logits());
  tape_.end_use(wte_);
  if (sizes_.converts_logits()) {
    const int wide = take(sizes_.logs());
    logs_ = take(sizes_.logs());
    give(wide);
  } else {
    logs_ = take(sizes_.logs());
  }
  give(logits);
}

Paper gpt_paper(const GptOptions& options, const TapeOptions& how) {
  return GptTape(options, how).write();
}

}  // namespace capstan::models
