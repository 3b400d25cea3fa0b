#include "capstan/cli/train/sample_text.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace capstan::cli::train {
namespace {

at::Tensor last_tokens(const std::vector<data::Token>& tokens, std::int64_t context) {
  const auto count = std::min<std::int64_t>(context, static_cast<std::int64_t>(tokens.size()));
  const std::vector<std::int64_t> ids(tokens.end() - count, tokens.end());
  return at::tensor(ids, at::kLong).unsqueeze(0);
}

}  // namespace

std::vector<data::Token> sample_tokens(const LogitsFunction& logits,
                                       std::vector<data::Token> prompt, at::Device device,
                                       const SampleOptions& options) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  for (std::int64_t i = 0; i < options.count; ++i) {
    const at::Tensor ids = last_tokens(prompt, options.context).to(device);
    const at::Tensor last = logits(ids).select(1, ids.size(1) - 1).squeeze(0);
    const at::Tensor scores = last.to(at::kCPU, at::kDouble) / options.temperature;
    const auto [best, tokens] = scores.topk(std::min(options.top_k, scores.numel()));
    const at::Tensor chosen = at::multinomial(at::softmax(best, 0), 1, false, generator);
    prompt.push_back(
        static_cast<data::Token>(tokens[chosen.item<std::int64_t>()].item<std::int64_t>()));
  }
  return prompt;
}

}  // namespace capstan::cli::train
