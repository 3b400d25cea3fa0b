// A backend whose operations start late by a random time on the device, as if the network were
// busy. What reads a result too early, or gives a buffer away too soon, then gets other numbers.
#pragma once

#include <cstdint>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace capstan::test {

// For device tensors. Delays are up to `max_cycles` of the device's clock.
c10::intrusive_ptr<c10d::Backend> delay_streams(c10::intrusive_ptr<c10d::Backend> inner,
                                                std::int64_t max_cycles, std::uint64_t seed);

}  // namespace capstan::test
