// A long row of tokens, in memory or in a memory-mapped file, read in pieces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capstan/data/tokenizer.h"

namespace capstan::data {

// Bytes per token in a .bin file, little-endian without a header.
enum class TokenType { uint8 = 1, uint16 = 2, uint32 = 4 };

// Cheap to copy: copies and slices share the bytes.
// Threads: immutable; share freely.
class TokenData {
 public:
  // In the smallest type that holds every token below `vocab`.
  TokenData(std::span<const Token> tokens, std::int64_t vocab);

  // Pages are read when touched, and shared with other processes on this machine. Throws IoError
  // when the file cannot be mapped, ConfigError when its size is no whole number of tokens.
  static TokenData map_file(const std::filesystem::path& path, TokenType type);

  std::int64_t size() const { return size_; }
  const std::string& name() const { return name_; }  // the file, or "text"

  // Copies out.size() tokens from `begin` on; requires them to be there.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;

  TokenData slice(std::int64_t begin, std::int64_t end) const;

 private:
  TokenData() = default;

  std::shared_ptr<const void> owner_;  // unmaps or frees the bytes
  const unsigned char* bytes_ = nullptr;
  std::int64_t size_ = 0;  // tokens
  TokenType type_ = TokenType::uint8;
  std::string name_ = "text";
};

}  // namespace capstan::data
