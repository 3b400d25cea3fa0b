#include "capstan/sequence_parallel/heads.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::sequence_parallel {
namespace {

constexpr int kHeads = 1;
constexpr int kSequence = 2;

bool shares(int heads, int ranks) { return heads % ranks == 0 || ranks % heads == 0; }

// "2, 4 or 8"
std::string or_list(const std::vector<int>& numbers) {
  if (numbers.size() < 2) return fmt::format("{}", fmt::join(numbers, ""));
  return fmt::format("{} or {}", fmt::join(numbers.begin(), numbers.end() - 1, ", "),
                     numbers.back());
}

[[noreturn]] void refuse(const std::string& what, int query_heads, int key_heads) {
  std::vector<int> possible;
  for (int ranks = 1; ranks <= query_heads; ++ranks) {
    if (query_heads % ranks == 0 && shares(key_heads, ranks)) possible.push_back(ranks);
  }
  throw ConfigError(
      {.what = what,
       .where = "sequence parallelism",
       .fix = fmt::format("choose a sequence_parallel_size of {}", or_list(possible))});
}

int heads_of(const at::Tensor& tensor) { return static_cast<int>(tensor.size(kHeads)); }

void check(const Qkv& parts) {
  for (const at::Tensor* tensor : {&parts.query, &parts.key, &parts.value}) {
    if (tensor->dim() == 4) continue;
    throw ConfigError({.what = fmt::format("attention was given a tensor of shape [{}]",
                                           fmt::join(tensor->sizes().vec(), ", ")),
                       .where = "sequence parallelism",
                       .fix = "give query, key and value as [batch, heads, sequence, width]"});
  }
  if (heads_of(parts.key) == heads_of(parts.value)) return;
  throw ConfigError(
      {.what = fmt::format("there are {} but {}", counted(heads_of(parts.key), "key head"),
                           counted(heads_of(parts.value), "value head")),
       .where = "sequence parallelism",
       .fix = "give as many of the one as of the other"});
}

}  // namespace

HeadShare share_heads(int query_heads, int key_heads, int ranks) {
  if (query_heads % ranks != 0) {
    refuse(fmt::format("{} cannot be shared equally by {}", counted(query_heads, "attention head"),
                       counted(ranks, "rank")),
           query_heads, key_heads);
  }
  if (!shares(key_heads, ranks)) {
    refuse(fmt::format("{} can neither be shared equally by {} nor be copied to them equally often",
                       counted(key_heads, "key head"), counted(ranks, "rank")),
           query_heads, key_heads);
  }
  const int copies = key_heads < ranks ? ranks / key_heads : 1;
  return {.query_heads = query_heads / ranks,
          .key_heads = key_heads * copies / ranks,
          .copies = copies};
}

Qkv to_heads(const Qkv& parts, const std::shared_ptr<comm::Group>& group) {
  check(parts);
  const HeadShare share = share_heads(heads_of(parts.query), heads_of(parts.key), group->size());
  Tensors all{parts.query, parts.key, parts.value};
  if (share.copies > 1) {  // neighbours share one: their query heads do, too
    for (at::Tensor* tensor : {&all[1], &all[2]}) {
      *tensor = at::repeat_interleave(*tensor, share.copies, kHeads);
    }
  }
  all = exchange(all, {.split = kHeads, .join = kSequence}, group);
  return {.query = all[0], .key = all[1], .value = all[2]};
}

at::Tensor attend(const Qkv& parts, const Attention& attention,
                  const std::shared_ptr<comm::Group>& group) {
  return exchange(attention(to_heads(parts, group)), {.split = kSequence, .join = kHeads}, group);
}

}  // namespace capstan::sequence_parallel
