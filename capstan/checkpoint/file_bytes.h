// Whole small reads and writes of files, for headers, indexes and tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "capstan/io/durable.h"
#include "capstan/io/file.h"

namespace capstan::checkpoint {

// Fills all of `into`; a file that ends earlier is an IoError.
void read_bytes(const io::File& file, std::int64_t offset, std::span<std::byte> into);
std::string read_text(const io::File& file, std::int64_t offset, std::int64_t bytes);
std::string read_text_file(const std::filesystem::path& path);

void write_bytes(const io::File& file, std::int64_t offset, std::span<const std::byte> bytes,
                 io::DurableCalls& calls);
// Makes the file new, writes and syncs it.
void write_text_file(const std::filesystem::path& path, const std::string& text,
                     io::DurableCalls& calls);
void sync_file(const io::File& file, io::DurableCalls& calls);

}  // namespace capstan::checkpoint
