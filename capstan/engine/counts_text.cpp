#include "capstan/engine/counts_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"

namespace capstan::engine {

std::string counts_text(const std::vector<std::int64_t>& counts) {
  return fmt::format("{}", fmt::join(counts, ","));
}

std::vector<std::int64_t> read_counts(const std::string& text) {
  std::vector<std::int64_t> counts;
  if (text.empty()) return counts;
  for (const std::string& each : split(text, ',')) counts.push_back(std::stoll(each));
  return counts;
}

}  // namespace capstan::engine
