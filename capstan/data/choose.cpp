#include "capstan/data/choose.h"

#include <cassert>

#include "capstan/base/counter_random.h"

namespace capstan::data {

// Selection sampling: each position is taken with the odds that what is still wanted has among what
// is left. One pass, already in order.
void choose_positions(std::int64_t count, std::uint64_t seed, std::span<std::int64_t> chosen) {
  auto wanted = static_cast<std::int64_t>(chosen.size());
  assert(wanted <= count);
  std::size_t taken = 0;
  for (std::int64_t position = 0; wanted > 0; ++position) {
    const double left = static_cast<double>(count - position);
    if (uniform_number(seed, static_cast<std::uint64_t>(position)) * left >=
        static_cast<double>(wanted)) {
      continue;
    }
    chosen[taken++] = position;
    --wanted;
  }
}

}  // namespace capstan::data
