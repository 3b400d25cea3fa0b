// Cuts a stream of bytes into whole lines, so that the output of many ranks never mixes within one.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace capstan::launch {

class LineSplitter {
 public:
  // `line` is without its end; `end` is '\n', or '\r' where a progress bar redraws itself.
  using Emit = std::function<void(std::string_view line, char end)>;

  // Longer lines come in pieces of this size; a rank that never ends its line must not fill the
  // memory. Far above any log line.
  static constexpr std::size_t kMaxLineBytes = 64 << 10;

  // `split_at_return`: a '\r' that no '\n' follows ends a line as well (for terminals).
  explicit LineSplitter(bool split_at_return = false, std::size_t max_bytes = kMaxLineBytes)
      : split_at_return_(split_at_return), max_bytes_(max_bytes) {}

  void feed(std::string_view bytes, const Emit& emit);
  void finish(const Emit& emit);  // what is left without an end, if anything

 private:
  bool split_at_return_;
  std::size_t max_bytes_;
  std::string held_;  // begins at the start of a line and has no end yet
};

}  // namespace capstan::launch
