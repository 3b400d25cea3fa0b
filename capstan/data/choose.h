// Which positions of a sequence a layer sees: a sample without replacement, in order, as a function
// of a seed.
#pragma once

#include <cstdint>
#include <span>

namespace capstan::data {

// Fills `chosen` with different positions of [0, count), rising; each set of them is as likely as
// any other. Requires chosen.size() <= count.
void choose_positions(std::int64_t count, std::uint64_t seed, std::span<std::int64_t> chosen);

}  // namespace capstan::data
