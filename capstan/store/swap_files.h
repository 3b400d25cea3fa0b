// Files on fast disks that serve as memory. They are mapped, so that anyone may use them as they
// are; whoever wants the disk's full speed reads and writes them with io/ at place_of().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>

#include "capstan/io/file.h"
#include "capstan/store/home.h"
#include "capstan/store/left_swap_files.h"

namespace capstan::store {

struct SwapOptions {
  std::vector<std::filesystem::path> folders;  // one file in each; on several disks they add up
  std::int64_t needed_bytes = 0;               // over all folders
  std::string label;              // says what is in them, e.g. "optimizer state of rank 0"
  std::uint64_t layout_hash = 0;  // of what is in them
  // Transfers past the page cache: for what is read once in a while. Else the cache keeps what fits
  // into free host memory.
  bool direct = true;
};

// Owns:    the files: locked while this lives and removed when it goes. Files that a process left
//          behind, however it ended, are removed when the next one makes its own in that folder.
// Threads: any.
class SwapFiles {
 public:
  // Throws IoError where a folder cannot be used or has too little free space.
  explicit SwapFiles(const SwapOptions& options);
  ~SwapFiles();
  SwapFiles(const SwapFiles&) = delete;
  SwapFiles& operator=(const SwapFiles&) = delete;

  // Memory that begins at a page and is zero, in the file that holds least. The space is taken on
  // the disk at once. It must not outlive this. Throws IoError.
  c10::DataPtr take(std::int64_t bytes);

  // Where a byte of that memory lies.
  struct Place {
    const io::File* file = nullptr;
    std::int64_t offset = 0;
  };
  Place place_of(const void* address) const;

  // What was written to the memory is on the disk, and no host memory holds it. Throws IoError.
  void write_back(Home::Which which = Home::Which::all);

  std::int64_t used_bytes() const;

 private:
  struct Swap {
    io::File file;
    std::int64_t end = 0;
  };
  struct Mapping {
    std::size_t swap = 0;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    bool written_back = false;
  };

  mutable std::mutex mutex_;  // guards all below
  std::vector<Swap> swaps_;
  std::map<const std::byte*, Mapping> mappings_;  // by address
};

}  // namespace capstan::store
