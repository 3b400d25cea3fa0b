// The safetensors file: eight bytes of header length, a JSON header that names tensors and their
// byte ranges, then the tensors without gaps. See docs/checkpoint_format.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "capstan/checkpoint/tensor_spec.h"
#include "capstan/io/file.h"

namespace capstan::checkpoint {

struct StoredTensor {
  TensorSpec spec;
  std::int64_t begin = 0;  // of its first byte, from the start of the file

  std::int64_t end() const { return begin + spec.bytes(); }
  bool operator==(const StoredTensor&) const = default;
};

// Invariant: tensors stand in the order of their bytes, the first behind the header, each behind
// the one before it.
struct Safetensors {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t file_bytes = 0;
  std::string header;  // the first bytes of the file, length included
};

// As other readers of the format allow.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

// Where each tensor stands in a file that holds exactly these, in this order.
Safetensors lay_out(const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata);

// Throws IoError when the file is cut off or its header is not what the format allows.
Safetensors read_safetensors(const io::File& file);

}  // namespace capstan::checkpoint
