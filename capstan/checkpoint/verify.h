// Reads every byte of a checkpoint and lists everything that is wrong with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace capstan::checkpoint {

struct Verified {
  std::vector<std::string> problems;  // empty: whole
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
};

Verified verify(const std::filesystem::path& checkpoint);

}  // namespace capstan::checkpoint
