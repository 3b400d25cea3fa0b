#include "capstan/tensor_parallel/vocab_embedding.h"

#include <limits>

#include <ATen/ops/embedding.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/tensor_parallel/operators.h"

namespace capstan::tensor_parallel {
namespace {

void refuse_ids(const at::Tensor& unknown, std::int64_t rows) {
  if (!unknown.is_cpu() || !unknown.any().item<bool>()) return;
  throw ConfigError({.what = "a token's number is none of the vocabulary's",
                     .where = "vocab_embedding",
                     .fix = fmt::format("give numbers from 0 to {}", rows - 1)});
}

}  // namespace

at::Tensor vocab_embedding(const Region& region, const at::Tensor& ids, const at::Tensor& weight,
                           const VocabCut& cut, std::optional<std::int64_t> padding) {
  const at::Tensor unknown = ids.lt(0).logical_or_(ids.ge(cut.all));
  refuse_ids(unknown, cut.all);
  const at::Tensor elsewhere = ids.lt(cut.rows.begin).logical_or_(ids.ge(cut.rows.end));
  const at::Tensor local = (ids - cut.rows.begin).masked_fill_(elsewhere, 0);
  const bool pads = padding && *padding >= cut.rows.begin && *padding < cut.rows.end;
  at::Tensor rows = at::embedding(weight, local, pads ? *padding - cut.rows.begin : -1)
                        .masked_fill(elsewhere.unsqueeze(-1), 0);
  if (!ids.is_cpu()) {
    rows = rows.masked_fill(unknown.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
  }
  return leave(region, rows);
}

}  // namespace capstan::tensor_parallel
