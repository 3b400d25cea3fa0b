// What is known of a stored tensor apart from its bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "capstan/checkpoint/element.h"
#include "capstan/layout/box.h"

namespace capstan::checkpoint {

struct TensorSpec {
  std::string name;
  Element element = Element::f32;
  std::vector<std::int64_t> shape;  // empty: one element

  std::int64_t elems() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  std::int64_t bytes() const { return elems() * size_bytes(element); }
  bool operator==(const TensorSpec&) const = default;
};

// Whether elems() and bytes() can be counted: a file from elsewhere may say anything of a tensor.
inline bool is_countable(const TensorSpec& spec) {
  std::int64_t bytes = size_bytes(spec.element);
  for (const std::int64_t dim : spec.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, std::max(dim, std::int64_t{1}), &bytes)) {
      return false;
    }
  }
  return true;
}

// What is stored of a tensor in one piece of a file: all of it under its own name, or a box of it,
// under the tensor's name and its place ("w[0:4, 8:16]").
inline TensorSpec slice_spec(const TensorSpec& tensor, const layout::Box& box) {
  if (box == layout::whole_box(tensor.shape)) return tensor;
  return {tensor.name + to_text(box), tensor.element, box.length};
}

// "F32 [3, 4]", for messages.
std::string to_text(const TensorSpec& spec);

}  // namespace capstan::checkpoint
