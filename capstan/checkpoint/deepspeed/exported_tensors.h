// Tensors of a checkpoint of ours laid end to end, in the orders that DeepSpeed's files have them.
#pragma once

#include <cstdint>
#include <vector>

#include "capstan/checkpoint/piece_writer.h"
#include "capstan/checkpoint/reader.h"

namespace capstan::checkpoint {

// Elements of one stored tensor, or zeros.
struct ElemSpan {
  const IndexTensor* tensor = nullptr;  // null: zeros
  std::int64_t begin = 0;
  std::int64_t elems = 0;
};

std::int64_t count_elems(const std::vector<ElemSpan>& spans);

// Elements [begin, end) of the spans laid end to end.
std::vector<ElemSpan> cut(const std::vector<ElemSpan>& spans, std::int64_t begin, std::int64_t end);

// The bytes of the spans as elements of `type`, converted where a tensor has another (among fp32,
// fp16 and bf16). `reader` must outlive the result.
Fill fill_of(Reader& reader, std::vector<ElemSpan> spans, Element type);

}  // namespace capstan::checkpoint
