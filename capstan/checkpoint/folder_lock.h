// One job at a time saves into a folder.
#pragma once

#include <filesystem>

#include "capstan/io/file.h"

namespace capstan::checkpoint {

// Owns:    a lock on the file `.lock` of the folder, which the system takes back when the process
//          ends, however it ends. Of several engines in one process the first owns it; the others
//          share the folder with it and take turns (SaveTurn).
class FolderLock {
 public:
  // Makes the folder where it is missing. Throws ConfigError that names the process which holds
  // the lock, and IoError; also for a `.lock` that is not a plain file of its own.
  explicit FolderLock(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // Another engine of this process owns the folder.
  bool shared() const { return !owned_; }
  // Again, where the folder was shared, whose owner may be gone, or was removed meanwhile. Throws
  // as the constructor.
  void own();

 private:
  friend class SaveTurn;

  std::filesystem::path folder_;
  io::File file_;
  bool owned_ = false;
};

// While it lives no other engine of this process saves into the folder.
class SaveTurn {
 public:
  // Throws ConfigError where another one's save is under way. `lock` must outlive this.
  explicit SaveTurn(const FolderLock& lock);
  ~SaveTurn();
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

 private:
  const FolderLock& lock_;
};

}  // namespace capstan::checkpoint
