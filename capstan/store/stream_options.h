// How what lives on disks passes through host memory. Plain values.
#pragma once

#include <cstdint>

#include "capstan/io/options.h"

namespace capstan::store {

// Of what every step changes.
struct StreamOptions {
  io::Options io;
  int buffer_count = 3;  // of the largest that is taken at a time
};

// Of what is read many times between two changes.
struct ReadAhead {
  io::Options io;
  std::int64_t limit_bytes = 0;  // read ahead and not yet taken
};

}  // namespace capstan::store
