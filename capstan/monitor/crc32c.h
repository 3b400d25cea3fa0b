// The checksum of TensorBoard's event files: CRC-32 with Castagnoli's polynomial.
#pragma once

#include <cstdint>
#include <string_view>

namespace capstan::monitor {

std::uint32_t crc32c(std::string_view bytes);

// As records of TFRecord files store it: a checksum over bytes that hold checksums is weak.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace capstan::monitor
