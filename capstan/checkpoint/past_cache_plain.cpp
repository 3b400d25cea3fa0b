#include <cstring>

#include "capstan/checkpoint/past_cache.h"

namespace capstan::checkpoint {

void copy_past_cache(std::span<const std::byte> from, std::byte* into) {
  std::memcpy(into, from.data(), from.size());
}

}  // namespace capstan::checkpoint
