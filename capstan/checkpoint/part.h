// What one rank wrote of a checkpoint: the note that it leaves in the unfinished folder. The rank
// that commits reads everybody's; so the ranks agree through the folder that they share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/checkpoint/disk.h"

namespace capstan::checkpoint {

struct WrittenBlock {
  int file = 0;            // of the plan
  int tensor = 0;          // in the file
  std::int64_t begin = 0;  // bytes of the tensor
  std::int64_t end = 0;
  std::uint64_t sum = 0;
  bool operator==(const WrittenBlock&) const = default;
};

struct Part {
  std::vector<WrittenBlock> blocks;
  std::string error;  // not empty: this rank could not write; why
  bool operator==(const Part&) const = default;
};

std::filesystem::path part_path(const std::filesystem::path& partial, int rank);

// Appears whole or not at all.
void write_part(const std::filesystem::path& partial, int rank, const Part& part, Disk& disk);
// Nothing while the rank has not written its own. Throws IoError when it cannot be read.
std::optional<Part> read_part(const std::filesystem::path& partial, int rank);

}  // namespace capstan::checkpoint
