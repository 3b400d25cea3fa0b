// Attention over a sequence whose parts are on several ranks (Ulysses): between the layers each
// rank has all heads of its part of the sequence; inside attention it has its heads of the whole
// sequence.
#pragma once

#include <functional>
#include <memory>

#include "capstan/sequence_parallel/exchange.h"

namespace capstan::sequence_parallel {

// [batch, heads, sequence, width], as scaled_dot_product_attention takes them. There may be fewer
// key heads (and as many value heads) than query heads: grouped queries.
struct Qkv {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// How heads are shared by ranks: pure numbers.
struct HeadShare {
  int query_heads = 0;  // on each rank
  int key_heads = 0;    // on each rank
  int copies = 1;       // ranks that have the same key head
};
// Throws ConfigError, which says what sizes divide the heads, where they cannot be shared equally.
HeadShare share_heads(int query_heads, int key_heads, int ranks);

// From parts of the sequence to parts of the heads, in one collective. Where there are fewer key
// heads than ranks, each goes to several of them, and its gradient is the sum of theirs.
Qkv to_heads(const Qkv& parts, const std::shared_ptr<comm::Group>& group);

using Attention = std::function<at::Tensor(const Qkv&)>;
// Calls `attention`, any one that works head by head, with our heads of the whole sequence; returns
// all heads of our part. Both are [batch, heads, sequence, width].
at::Tensor attend(const Qkv& parts, const Attention& attention,
                  const std::shared_ptr<comm::Group>& group);

}  // namespace capstan::sequence_parallel
