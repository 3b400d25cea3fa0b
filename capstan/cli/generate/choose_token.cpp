#include "capstan/cli/generate/choose_token.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace capstan::cli::generate {

data::Token likeliest_token(const at::Tensor& logits) {
  return static_cast<data::Token>(logits.argmax().item<std::int64_t>());
}

data::Token draw_token(const at::Tensor& logits, const DrawOptions& options,
                       at::Generator& generator) {
  // In double on the CPU: the same draw wherever the model computes.
  const at::Tensor scores = logits.to(at::kCPU, at::kDouble) / options.temperature;
  const std::int64_t count =
      options.top_k == 0 ? scores.numel() : std::min(options.top_k, scores.numel());
  const auto [best, tokens] = scores.topk(count);
  at::Tensor shares = at::softmax(best, 0);
  // A token stays while those before it do not reach top_p: the first always does.
  const at::Tensor before = shares.cumsum(0) - shares;
  shares = at::where(before < options.top_p, shares, at::zeros_like(shares));
  shares[0] += (shares.sum() == 0).to(at::kDouble);
  const at::Tensor chosen = at::multinomial(shares, 1, false, generator);
  return static_cast<data::Token>(tokens[chosen.item<std::int64_t>()].item<std::int64_t>());
}

}  // namespace capstan::cli::generate
