#include "capstan/checkpoint/deepspeed/torch_archive.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/pickle_reader.h"
#include "capstan/checkpoint/file_bytes.h"

namespace capstan::checkpoint {
namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kEntrySignature = 0x02014b50;
constexpr std::int64_t kEndBytes = 22;
constexpr std::int64_t kEnd64LocatorBytes = 20;
constexpr std::int64_t kEntryBytes = 46;
constexpr std::int64_t kLocalBytes = 30;
constexpr std::uint32_t kIn64Bits = 0xffffffff;  // the real value is in the 64-bit extra field

template <typename Number>
Number zip_number(const std::string& bytes, std::size_t at) {
  Number value{};
  if (at + sizeof(Number) <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof(Number));
  return value;
}

// The 64-bit extra field holds, in this order, those of size, packed size and offset that did not
// fit in 32 bits.
struct ZipEntry {
  std::uint64_t bytes = 0;
  std::uint64_t packed = 0;
  std::uint64_t offset = 0;
};

void read_extra(ZipEntry& entry, const std::string& extra) {
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const auto id = zip_number<std::uint16_t>(extra, at);
    const auto size = zip_number<std::uint16_t>(extra, at + 2);
    std::size_t value = at + 4;
    if (id == 1) {
      for (std::uint64_t* const field : {&entry.bytes, &entry.packed, &entry.offset}) {
        if (*field != kIn64Bits) continue;
        *field = zip_number<std::uint64_t>(extra, value);
        value += 8;
      }
    }
    at += 4U + size;
  }
}

}  // namespace

TorchArchive::TorchArchive(const std::filesystem::path& path) : path_(path) {
  const io::File file = io::File::open(path, {});
  read_directory(file);
  const auto pickle = records_.find("data.pkl");
  if (pickle == records_.end()) refuse("it has no data.pkl");
  root_ = read_pickle(read_text(file, pickle->second.offset, pickle->second.bytes), path.string());
}

void TorchArchive::refuse(const std::string& why) const {
  throw IoError({.what = "this is not a file written by torch.save: " + why,
                 .where = path_.string(),
                 .fix = "give a checkpoint that DeepSpeed wrote (the zip format, which is its "
                        "default)"});
}

void TorchArchive::read_directory(const io::File& file) {
  const std::int64_t size = file.size_bytes();
  if (size < kEndBytes) refuse("it is too short");
  // torch.save writes no comment behind the directory's end.
  const std::string end = read_text(file, size - kEndBytes, kEndBytes);
  if (zip_number<std::uint32_t>(end, 0) != kEndSignature) refuse("its directory is missing");
  std::uint64_t count = zip_number<std::uint16_t>(end, 10);
  std::uint64_t at = zip_number<std::uint32_t>(end, 16);
  const std::int64_t locator = size - kEndBytes - kEnd64LocatorBytes;
  if (locator >= 0 && zip_number<std::uint32_t>(read_text(file, locator, 4), 0) == 0x07064b50) {
    const auto end64 = zip_number<std::uint64_t>(read_text(file, locator, kEnd64LocatorBytes), 8);
    const std::string record = read_text(file, static_cast<std::int64_t>(end64), 56);
    if (zip_number<std::uint32_t>(record, 0) != kEnd64Signature) refuse("its directory is damaged");
    count = zip_number<std::uint64_t>(record, 32);
    at = zip_number<std::uint64_t>(record, 48);
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string entry = read_text(file, static_cast<std::int64_t>(at), kEntryBytes);
    if (zip_number<std::uint32_t>(entry, 0) != kEntrySignature) refuse("its directory is damaged");
    if (zip_number<std::uint16_t>(entry, 10) != 0) refuse("a member is compressed");
    const auto name_bytes = zip_number<std::uint16_t>(entry, 28);
    const auto extra_bytes = zip_number<std::uint16_t>(entry, 30);
    const auto comment_bytes = zip_number<std::uint16_t>(entry, 32);
    const std::string names =
        read_text(file, static_cast<std::int64_t>(at) + kEntryBytes, name_bytes + extra_bytes);
    ZipEntry where{zip_number<std::uint32_t>(entry, 24), zip_number<std::uint32_t>(entry, 20),
                   zip_number<std::uint32_t>(entry, 42)};
    read_extra(where, names.substr(name_bytes));
    const auto local = static_cast<std::int64_t>(where.offset);
    const std::string header = read_text(file, local, kLocalBytes);
    const std::int64_t begin = local + kLocalBytes + zip_number<std::uint16_t>(header, 26) +
                               zip_number<std::uint16_t>(header, 28);
    if (begin > size || where.bytes > static_cast<std::uint64_t>(size - begin)) {
      refuse("it is truncated");
    }
    const std::string name = names.substr(0, name_bytes);
    records_[name.substr(name.find('/') + 1)] = {begin, static_cast<std::int64_t>(where.bytes)};
    at += static_cast<std::uint64_t>(kEntryBytes) + name_bytes + extra_bytes + comment_bytes;
  }
}

FileSpan TorchArchive::span_of(const PyTensor& tensor) const {
  if (tensor.elems() == 0) return {path_, 0, 0};
  const auto record = records_.find("data/" + tensor.storage);
  const std::int64_t size = size_bytes(tensor.element);
  const std::int64_t held = record == records_.end() ? 0 : record->second.bytes / size;
  if (tensor.offset > held || tensor.elems() > held - tensor.offset) {
    refuse("a tensor's bytes are missing");
  }
  if (!tensor.contiguous()) refuse("a tensor is not contiguous");
  return {path_, record->second.offset + tensor.offset * size, tensor.elems() * size};
}

}  // namespace capstan::checkpoint
