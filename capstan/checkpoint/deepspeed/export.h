// A checkpoint of ours as DeepSpeed's own files, so that DeepSpeed resumes from it.
#pragma once

#include <filesystem>
#include <string>

#include "capstan/checkpoint/reader.h"

namespace capstan::checkpoint {

struct ExportOptions {
  int stage = -1;  // of the run that will resume; -1: as it was saved
  int ranks = 0;   // likewise; DeepSpeed insists on the number of ranks; 0: as it was saved
};

// Writes folder/<tag>/*.pt and folder/latest. Trained parameters stand in their groups; where a
// checkpoint knows none they form one, in the model's order. Throws ConfigError for a checkpoint
// without masters or optimizer state, and where folder/<tag> is there already.
void export_deepspeed(Reader& reader, const std::filesystem::path& folder,
                      const ExportOptions& options);

}  // namespace capstan::checkpoint
