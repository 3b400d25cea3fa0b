#include "capstan/cli/report/io_rows.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/log.h"
#include "capstan/base/text.h"
#include "capstan/io/ring.h"
#include "capstan/io/space.h"
#include "capstan/io/throughput.h"

namespace capstan::cli {
namespace {

// Chosen: with three rounds, half a second on an NVMe disk and some seconds on a turning one.
constexpr std::int64_t kMeasuredBytes = std::int64_t{64} << 20;

Row rate_row(std::string name, double gb_per_s, double plain_gb_per_s) {
  return {.section = "folder",
          .name = std::move(name),
          .value = fmt::format("{:.2f} GB/s, {:.2f} x plain ({:.2f} GB/s)", gb_per_s,
                               gb_per_s / plain_gb_per_s, plain_gb_per_s),
          .number = gb_per_s,
          .unit = "GB/s"};
}

}  // namespace

std::vector<Row> io_rows() {
  Row row{.section = "io", .name = "path in use", .basic = true};
  try {
    NullLogger logger;
    io::Ring ring({}, logger);
    const io::File zeros = io::File::open("/dev/zero", {});
    std::array<std::byte, 64> bytes{};
    ring.read(zeros, 0, bytes).wait();
    row.value = io::to_string(ring.path());
    if (ring.path() == io::IoPath::threads) {
      // The why has three lines: what, where, fix.
      const std::vector<std::string> why = split(ring.why_not_uring(), '\n');
      row.state = RowState::missing;
      row.value += fmt::format(", because io_uring is not available: {}", why.front());
      row.fix = why.size() > 1 ? std::string(trim(why.back())) : "";
      if (row.fix.starts_with("fix:")) row.fix = std::string(trim(row.fix.substr(4)));
    }
  } catch (const Error& error) {
    row.state = RowState::failed;
    row.value = error.info().what;
    row.fix = error.info().fix;
  }
  return {row};
}

std::vector<Row> folder_rows(const std::filesystem::path& folder) {
  const io::Throughput measured = io::measure_throughput(
      {.folder = folder, .bytes = kMeasuredBytes, .paths = {io::IoPath::automatic}});
  const std::int64_t free = io::free_bytes(folder);
  std::vector<Row> rows = {{.section = "folder",
                            .name = "free space",
                            .value = fmt::format("{} in {}", format_bytes(free), folder.string()),
                            .number = static_cast<double>(free),
                            .unit = "bytes"}};
  Row direct{.section = "folder", .name = "direct I/O", .value = "works"};
  if (!measured.direct) {
    direct.state = RowState::missing;
    direct.value = "refused by this file system; the page cache is used";
    direct.fix = "for offload to NVMe, name a folder on a local ext4 or xfs disk";
  }
  rows.push_back(direct);
  const io::PathRates& path = measured.paths.front();
  const std::string name = io::to_string(path.path);
  rows.push_back(
      rate_row(name + " write", path.rates.write_gb_per_s, measured.plain.write_gb_per_s));
  rows.push_back(rate_row(name + " read", path.rates.read_gb_per_s, measured.plain.read_gb_per_s));
  return rows;
}

}  // namespace capstan::cli
