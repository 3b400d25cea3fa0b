// Names that stand in files from elsewhere: names of entries in one folder, never paths.
#pragma once

#include <algorithm>
#include <string_view>

namespace capstan::checkpoint {

// Whether `name` stands for a visible file or folder directly in the folder that it is looked up
// in.
inline bool is_plain_name(std::string_view name) {
  constexpr std::size_t kLongest = 255;  // as file systems have it
  return !name.empty() && name.size() <= kLongest && name.front() != '.' &&
         std::ranges::none_of(
             name, [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' '; });
}

}  // namespace capstan::checkpoint
