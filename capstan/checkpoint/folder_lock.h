// One job at a time saves into a folder.
#pragma once

#include <filesystem>
#include <optional>

#include "capstan/io/file.h"

namespace capstan::checkpoint {

// Owns:    a lock on the file `.lock` of the folder, which the system takes back when the process
//          ends, however it ends. Several engines of one process share the folder.
class FolderLock {
 public:
  // Makes the folder where it is missing. Throws ConfigError that names the process which holds
  // the lock, and IoError.
  explicit FolderLock(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  io::File file_;
};

}  // namespace capstan::checkpoint
