// What an optimizer kernel works on: columns of equally many elements, each with its own dtype.
#pragma once

#include <cstdint>

#include "capstan/base/dtype.h"

namespace capstan::optim {

// One column; null data means that it is absent.
struct Column {
  void* data = nullptr;
  DType dtype = DType::fp32;
};

struct ConstColumn {
  const void* data = nullptr;
  DType dtype = DType::fp32;
};

// No optimizer keeps more than two state tensors (Adam's two moments).
inline constexpr int kMaxStates = 2;

// A slot piece or a whole shard. The arithmetic is fp32 whatever the dtypes are; a value is rounded
// (to nearest even) once, when it is written to its column.
struct Span {
  Column master;              // read and written
  ConstColumn grad;           // read
  Column states[kMaxStates];  // read and written; in the order of state_names()
  Column param;               // optional: receives a copy of the updated master
  // Optional, all or none, for the CPU's element-wise update: the new values go here, and master
  // and states keep the old ones.
  Column fresh_master;
  Column fresh_states[kMaxStates];
  std::int64_t elems = 0;
};

}  // namespace capstan::optim
