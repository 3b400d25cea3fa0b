// The index of one checkpoint: every tensor with its place and checksums, and the state of the run.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/checkpoint/tensor_spec.h"
#include "capstan/checkpoint/training_state.h"

namespace capstan::checkpoint {

// A rank writes its part of a tensor in blocks of at most this size, each with a checksum, so that
// a reader can check any range with one block of memory. Chosen: large enough that checksums are
// few (a thousand per 16 GB), small enough for a buffer of several.
inline constexpr std::int64_t kBlockBytes = std::int64_t{16} << 20;

// More bytes, steps or samples than there are; half of the type's range, so that sums fit.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 62;
inline constexpr std::int64_t kMostRanks = 1 << 24;

struct Block {
  std::int64_t end = 0;  // of its bytes in the slice; it begins where the one before it ends
  std::uint64_t sum = 0;
  bool operator==(const Block&) const = default;
};

// A box of a tensor, as one row-major piece of a file.
struct StoredSlice {
  layout::Box box;
  std::string file;
  std::int64_t begin = 0;     // of its first byte in the file
  std::vector<Block> blocks;  // cover it; none for a slice without bytes
  bool operator==(const StoredSlice&) const = default;
};

struct IndexTensor {
  TensorSpec spec;
  std::vector<StoredSlice> slices;  // hold every element once; mostly one that is the whole tensor

  // In one piece of a file.
  static IndexTensor whole(TensorSpec spec, std::string file, std::int64_t begin = 0,
                           std::vector<Block> blocks = {});
  bool is_whole() const;
  bool is_in(std::string_view file) const;  // some of it
  bool operator==(const IndexTensor&) const = default;
};

// Tensors of one kind: "model" (the weights), "master", "optimizer.exp_avg", "rng", "client".
struct Column {
  std::string name;
  std::vector<IndexTensor> tensors;

  const IndexTensor* find(std::string_view tensor) const;
  bool operator==(const Column&) const = default;
};

struct FileFact {
  std::string name;
  std::int64_t bytes = 0;
  std::optional<std::uint64_t> sum;  // of files that hold no tensors
  bool operator==(const FileFact&) const = default;
};

struct Index {
  std::string tag;
  std::int64_t sequence = 0;  // larger is newer, within one folder
  bool latest = true;         // false: saved beside the run, never taken as the newest
  std::string saved_at;       // UTC
  TrainingState state;
  std::vector<Column> columns;
  std::vector<FileFact> files;
  // Texts of the state that stand in files of their own, by their key: large ones. The state then
  // has "null" for them, until a Reader has read the file.
  std::map<std::string, std::string> text_files;

  const Column* find(std::string_view column) const;
  // Throws ConfigError that names the tensor.
  const IndexTensor& tensor(std::string_view column, std::string_view tensor) const;
  bool operator==(const Index&) const = default;
};

// The texts of a state that are their owner's, by the keys that they have in an index.
inline constexpr std::array<std::pair<const char*, std::string TrainingState::*>, 3> kTexts = {
    {{"lr_scheduler", &TrainingState::lr_scheduler},
     {"data", &TrainingState::data},
     {"client_state", &TrainingState::client_state}}};

inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kIndexChecksumFile = "index.checksum";

// What must hold of an index beyond its single values: weights are there, nothing is listed twice,
// and every tensor lies inside a listed file. `source` is for messages. Throws IoError.
void check(const Index& index, const std::string& source);

// Whether these fields can be those of a loss scale: numbers in range, the scale above 0.
bool is_loss_scale(const std::map<std::string, double>& fields);

std::string to_json(const Index& index);
// `source` is for messages. Throws IoError when the text is no index of ours.
Index index_from_json(const std::string& text, const std::string& source);

// Of a checkpoint's folder; checked against its checksum. Throws IoError.
Index read_index(const std::filesystem::path& folder);

}  // namespace capstan::checkpoint
