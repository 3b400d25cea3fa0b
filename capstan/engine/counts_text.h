// Lists of numbers as text, for ranks that tell each other shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::engine {

std::string counts_text(const std::vector<std::int64_t>& counts);  // "4,16"
// Requires such a text.
std::vector<std::int64_t> read_counts(const std::string& text);

}  // namespace capstan::engine
