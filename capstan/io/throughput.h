// Measures how fast a folder's disk is through each I/O path, against plain pread and pwrite.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "capstan/io/open_queue.h"
#include "capstan/io/options.h"

namespace capstan::io {

struct ThroughputPlan {
  std::filesystem::path folder;  // must exist and be writable
  std::int64_t bytes = std::int64_t{256} << 20;
  Options options;
  std::vector<IoPath> paths = {IoPath::io_uring, IoPath::threads};
  int rounds = 3;  // of everything, interleaved; the median of each figure counts
};

struct Rates {
  double write_gb_per_s = 0;  // 10^9 bytes; up to and with the fsync
  double read_gb_per_s = 0;   // from the disk: direct, or with the cache forgotten before
};

struct PathRates {
  IoPath path = IoPath::threads;
  Rates rates;
  std::string unavailable;  // not empty: why this path cannot run here; no rates then
};

struct Throughput {
  bool direct = false;  // whether O_DIRECT worked in this folder
  Rates plain;          // one pread or pwrite after the other, same block size, same descriptor
  std::vector<PathRates> paths;
};

// Works in a file without a name, so that nothing is left behind however the program ends.
// Throws IoError when the folder is missing, not writable or too full.
[[nodiscard]] Throughput measure_throughput(const ThroughputPlan& plan);

}  // namespace capstan::io
