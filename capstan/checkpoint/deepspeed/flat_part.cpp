#include "capstan/checkpoint/deepspeed/flat_part.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace capstan::checkpoint {
namespace {

std::int64_t rounded_up(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

// Those of `elems` elements that lie in [begin, begin + length), and zeros for what is missing.
class Collector {
 public:
  std::int64_t take(int tensor, std::int64_t elems, std::int64_t begin, std::int64_t length) {
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, elems);
    const std::int64_t last = std::clamp<std::int64_t>(begin + length, 0, elems);
    add({tensor, first, last - first});
    return last - first;
  }
  void fill(std::int64_t elems) { add({-1, 0, elems}); }
  std::vector<FlatPiece> pieces() && { return std::move(pieces_); }

 private:
  void add(FlatPiece piece) {
    if (piece.elems > 0) pieces_.push_back(piece);
  }
  std::vector<FlatPiece> pieces_;
};

}  // namespace

std::vector<FlatPiece> flat_part(std::span<const std::int64_t> sizes, int stage, int rank,
                                 int ranks) {
  Collector collected;
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::int64_t length = rounded_up(all, std::int64_t{2} * ranks) / ranks;
  std::int64_t at = rank * length;  // from the first element of the tensor in hand
  std::int64_t missing = length;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (stage == 3) {
      length = rounded_up(sizes[i], ranks) / ranks;
      at = rank * length;
      missing = length;
    }
    missing -= collected.take(static_cast<int>(i), sizes[i], at, length);
    if (stage == 3) collected.fill(missing);
    at -= sizes[i];
  }
  if (stage != 3) collected.fill(missing);
  return std::move(collected).pieces();
}

}  // namespace capstan::checkpoint
