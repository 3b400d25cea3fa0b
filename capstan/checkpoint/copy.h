// A checkpoint, of whatever layout a Reader reads, written again as one of ours.
#pragma once

#include <filesystem>
#include <string>

#include "capstan/checkpoint/reader.h"
#include "capstan/checkpoint/save.h"

namespace capstan::checkpoint {

struct CopyTarget {
  std::filesystem::path folder;
  std::string tag;
  bool latest = true;  // as in SaveRequest
};

// Through one bounded buffer, while nobody else saves into the folder. Throws as saving and reading
// do; nothing is left then.
Committed copy_checkpoint(Reader& from, const CopyTarget& to);

}  // namespace capstan::checkpoint
