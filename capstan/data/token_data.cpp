#include "capstan/data/token_data.h"

#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "capstan/base/error.h"
#include "capstan/base/shown_path.h"
#include "capstan/io/file.h"

namespace capstan::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

template <typename Element>
std::shared_ptr<const void> packed(std::span<const Token> tokens) {
  auto bytes = std::make_shared<std::vector<Element>>(tokens.begin(), tokens.end());
  return {bytes, bytes->data()};
}

template <typename Element>
void widen(const unsigned char* bytes, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Element value;
    std::memcpy(&value, bytes + i * sizeof(Element), sizeof(Element));
    out[i] = static_cast<std::int64_t>(value);
  }
}

}  // namespace

TokenData::TokenData(std::span<const Token> tokens, std::int64_t vocab)
    : size_(static_cast<std::int64_t>(tokens.size())) {
  if (vocab <= 1 << 8) {
    owner_ = packed<std::uint8_t>(tokens);
  } else if (vocab <= 1 << 16) {
    type_ = TokenType::uint16;
    owner_ = packed<std::uint16_t>(tokens);
  } else {
    type_ = TokenType::uint32;
    owner_ = packed<std::uint32_t>(tokens);
  }
  bytes_ = static_cast<const unsigned char*>(owner_.get());
}

TokenData TokenData::map_file(const std::filesystem::path& path, TokenType type) {
  const io::File file = io::File::open(path, {.access = io::Access::read_only});
  const std::int64_t bytes = file.size_bytes();
  const auto width = static_cast<std::int64_t>(type);
  if (bytes == 0 || bytes % width != 0) {
    throw ConfigError({.what = "the file has " + std::to_string(bytes) +
                               " bytes, which is not a whole number of tokens; bytes per token: " +
                               std::to_string(width),
                       .where = shown_path(path),
                       .fix = "check how it was written: uint16 or uint32, without a header"});
  }
  void* const place = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED,
                           file.descriptor()->fd(), 0);
  if (place == MAP_FAILED) {
    throw IoError({.what = std::string("cannot map the file: ") + std::strerror(errno),
                   .where = shown_path(path),
                   .fix = "put it on a file system that can be memory-mapped"});
  }
  TokenData data;
  data.owner_ = std::shared_ptr<const void>(place, [bytes](const void* mapped) {
    munmap(const_cast<void*>(mapped), static_cast<std::size_t>(bytes));
  });
  data.bytes_ = static_cast<const unsigned char*>(place);
  data.size_ = bytes / width;
  data.type_ = type;
  data.name_ = path.string();
  return data;
}

void TokenData::read(std::int64_t begin, std::span<std::int64_t> out) const {
  // Out of range would be a mistake in our own arithmetic of samples.
  assert(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= size_);
  const unsigned char* const from = bytes_ + begin * static_cast<std::int64_t>(type_);
  switch (type_) {
    case TokenType::uint8:
      return widen<std::uint8_t>(from, out);
    case TokenType::uint16:
      return widen<std::uint16_t>(from, out);
    case TokenType::uint32:
      return widen<std::uint32_t>(from, out);
  }
}

TokenData TokenData::slice(std::int64_t begin, std::int64_t end) const {
  assert(0 <= begin && begin <= end && end <= size_);
  TokenData part = *this;
  part.bytes_ += begin * static_cast<std::int64_t>(type_);
  part.size_ = end - begin;
  return part;
}

}  // namespace capstan::data
