// The memory of a GPT-2's forward and backward, operation by operation, as autograd keeps it.
#pragma once

#include <cstdint>
#include <vector>

#include "capstan/models/gpt_options.h"
#include "capstan/models/gpt_sizes.h"
#include "capstan/models/tape.h"
#include "capstan/recompute/spans.h"

namespace capstan::models {

// What the forward of one block leaves for its backward.
struct SavedBlock {
  int unit = 0;
  int input = 0;
  int norm1 = 0;  // its output
  int stats1 = 0;
  int qkv = 0;
  int mixed = 0;   // what attention gives
  int sums = 0;    // its logarithms of sums of exponentials
  int drawn1 = 0;  // a dropout mask
  int attended = 0;
  int norm2 = 0;
  int stats2 = 0;
  int wide = 0;  // before GELU
  int gelu = 0;
  int drawn2 = 0;
  int output = 0;
};

class GptTape {
 public:
  GptTape(const GptOptions& options, const TapeOptions& how)
      : options_(options), sizes_(options, how) {}

  Paper write();

 private:
  int take(std::int64_t bytes) { return tape_.take(bytes); }
  void give(int block) { tape_.give(block); }

  void forward();
  // The second operand of the sum is evaluated first, so that its gradient comes last.
  int embed();
  // Dropout of a block that nobody else keeps.
  int drop(int x, int& mask);
  SavedBlock run_block(int unit, int x);
  // The same with nothing kept; what is not needed any more goes at the end of its statement.
  int pass_block(int unit, int x, bool own);
  void head();
  void backward();
  int head_backward();
  // Gradients of some of a unit's parameters come: made, taken over, and gone.
  void come(int unit, int first, int count);
  std::int64_t grad_bytes(int param) const;
  // A product with a weight: gradients of input and weight, while both operands are still there.
  int product_backward(int unit, int first, int count, std::int64_t input_bytes, int out,
                       int input);
  // `out`: the gradient of the block's output becomes that of its input. `shared`: somebody else
  // holds it too.
  void block_backward(const SavedBlock& saved, int& out, bool shared);
  int span_backward(std::size_t index, int gradient);
  void embedding_backward(int gradient);

  GptOptions options_;
  GptSizes sizes_;
  TapeWriter tape_;
  const Paper* params_ = nullptr;
  int wte_ = 0;
  int wpe_ = 0;
  int first_block_ = 0;
  int final_norm_ = 0;
  int batch_ = 0;
  int drawn_ = 0;
  int last_ = 0;  // what the blocks give
  int final_ = 0;
  int final_stats_ = 0;
  int logs_ = 0;
  int table_ = 0;
  std::vector<SavedBlock> blocks_;
  std::vector<recompute::Span> spans_;
  std::vector<int> starts_;
  std::vector<int> random_;  // states of generators
  bool to_host_ = false;
  std::int64_t host_bytes_ = 0;
};

Paper gpt_paper(const GptOptions& options, const TapeOptions& how);

}  // namespace capstan::models
