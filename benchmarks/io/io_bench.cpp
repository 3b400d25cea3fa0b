// Claim: the ring keeps a disk at least as busy as plain pread and pwrite do, whatever the path.
// io_bench [folder] [MiB]: the current folder and 512 MiB where nothing is said.
#include <cstdlib>
#include <exception>
#include <filesystem>

#include <fmt/format.h>

#include "capstan/io/throughput.h"

int main(int argc, char** argv) {
  namespace io = capstan::io;
  try {
    const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
    const std::int64_t mib = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 512;
    for (const int depth : {1, 8, 32}) {
      const io::Throughput measured = io::measure_throughput(
          {.folder = folder, .bytes = mib << 20, .options = {.queue_depth = depth}});
      fmt::print("depth {:>2}  plain     write {:6.2f} GB/s         read {:6.2f} GB/s{}\n", depth,
                 measured.plain.write_gb_per_s, measured.plain.read_gb_per_s,
                 measured.direct ? "" : "  (through the page cache)");
      for (const io::PathRates& path : measured.paths) {
        if (!path.unavailable.empty()) continue;
        fmt::print(
            "depth {:>2}  {:<8}  write {:6.2f} GB/s  {:4.2f}x  read {:6.2f} GB/s  {:4.2f}x\n",
            depth, io::to_string(path.path), path.rates.write_gb_per_s,
            path.rates.write_gb_per_s / measured.plain.write_gb_per_s, path.rates.read_gb_per_s,
            path.rates.read_gb_per_s / measured.plain.read_gb_per_s);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
