// How large the pieces of a GPT-2 are on one rank that shares it with others.
#pragma once

#include <cstdint>

#include "capstan/models/gpt_options.h"
#include "capstan/models/tape.h"

namespace capstan::models {

// In bytes, of one micro-batch. N tokens, C width, H heads, V vocabulary, D = C / H.
class GptSizes {
 public:
  GptSizes(const GptOptions& options, const TapeOptions& how);

  bool on_gpu = false;
  int tensor = 1;

  bool drops() const { return dropout_; }
  std::int64_t batch_bytes() const { return batch_; }
  std::int64_t hidden() const { return hidden_; }  // [N, C]
  std::int64_t places() const { return places_; }  // [T, C]
  std::int64_t inner() const { return inner_; }    // of one of query, key, value
  std::int64_t mlp() const { return mlp_; }
  std::int64_t stats() const { return stats_; }  // of a layer norm: mean and deviation
  std::int64_t mask() const { return mask_; }    // of a dropout
  std::int64_t attention_saved() const { return attention_saved_; }  // beside inputs and output
  std::int64_t attention_workspace() const { return attention_workspace_; }
  std::int64_t attention_backward_workspace() const { return attention_backward_workspace_; }
  std::int64_t logits() const { return logits_; }
  std::int64_t logs() const { return logs_; }  // in fp32
  bool converts_logits() const { return converts_logits_; }
  std::int64_t table() const { return table_; }  // the gradient of the tokens' table
  // Of one block: split over ranks, queries, keys and values are parameters of their own.
  int qkv_params() const { return tensor > 1 ? 6 : 2; }
  std::int64_t param_bytes(const PaperParam& param) const;

 private:
  bool dropout_ = false;
  std::int64_t element_ = 4;
  std::int64_t batch_ = 0, hidden_ = 0, places_ = 0, inner_ = 0, mlp_ = 0, stats_ = 0, mask_ = 0;
  std::int64_t attention_saved_ = 0, attention_workspace_ = 0, attention_backward_workspace_ = 0;
  std::int64_t logits_ = 0, logs_ = 0, table_ = 0;
  bool converts_logits_ = false;
};

// Parameters and units, and where among the units each part stands.
struct GptLayout {
  Paper paper;
  int wte = 0;
  int wpe = 1;
  int first_block = 0;
  int final_norm = 0;
};
GptLayout gpt_layout(const GptOptions& options, const GptSizes& sizes);

}  // namespace capstan::models
