#include "capstan/launch/line_splitter.h"

namespace capstan::launch {

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  held_.append(bytes);
  const std::string_view all = held_;
  std::size_t begin = 0;
  while (begin < all.size()) {
    std::size_t end = all.find('\n', begin);
    char ended_by = '\n';
    if (split_at_return_) {
      const std::size_t stop = all.find('\r', begin);
      // A '\r' at the very end may be half of "\r\n": wait for the next bytes.
      if (stop < end && stop + 1 < all.size() && all[stop + 1] != '\n') {
        end = stop;
        ended_by = '\r';
      }
    }
    if (end == std::string_view::npos || end - begin > max_bytes_) {
      if (all.size() - begin <= max_bytes_) break;
      emit(all.substr(begin, max_bytes_), '\n');
      begin += max_bytes_;
      continue;
    }
    emit(all.substr(begin, end - begin), ended_by);
    begin = end + 1;
  }
  held_.erase(0, begin);
}

void LineSplitter::finish(const Emit& emit) {
  if (!held_.empty()) emit(held_, '\n');
  held_.clear();
}

}  // namespace capstan::launch
