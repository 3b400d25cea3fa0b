#include "capstan/engine/comms_log.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::engine {
namespace {

std::optional<std::size_t> row_of(std::string_view name) {
  for (int i = 0; i < comm::kOpKinds; ++i) {
    if (comm::to_string(static_cast<comm::OpKind>(i)) == name) return static_cast<std::size_t>(i);
  }
  return std::nullopt;
}

double gigabytes_per_second(std::int64_t bytes, std::chrono::nanoseconds time) {
  return time.count() == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(time.count());
}

}  // namespace

bool CommsLog::add(const profile::Record& record) {
  const std::optional<std::size_t> row = row_of(record.name);
  if (!kKinds.has(record.kind) || !row.has_value()) return false;
  if (!options_.all_ops && std::ranges::find(options_.ops, record.name) == options_.ops.end()) {
    return false;
  }
  Row& sums = rows_[*row];
  ++sums.calls;
  sums.bytes += record.bytes;
  sums.time += record.device.length;
  return true;
}

std::string CommsLog::line(const profile::Record& record) const {
  const bool labelled = options_.debug && !record.unit.empty();
  return fmt::format("{}{}: {} in {:.3f} ms, {:.2f} GB/s", record.detail,
                     labelled ? fmt::format(" ({})", record.unit) : "", format_bytes(record.bytes),
                     profile::milliseconds(record.device.length),
                     gigabytes_per_second(record.bytes, record.device.length));
}

std::string CommsLog::take_table() {
  std::string table = "communication since the last report:";
  for (int i = 0; i < comm::kOpKinds; ++i) {
    const Row& row = rows_[static_cast<std::size_t>(i)];
    if (row.calls == 0) continue;
    table += fmt::format("\n  {:<15} {:>8} calls {:>12} {:>10.2f} ms {:>8.2f} GB/s",
                         comm::to_string(static_cast<comm::OpKind>(i)), row.calls,
                         format_bytes(row.bytes), profile::milliseconds(row.time),
                         gigabytes_per_second(row.bytes, row.time));
  }
  rows_ = {};
  return table;
}

}  // namespace capstan::engine
