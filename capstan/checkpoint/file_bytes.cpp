#include "capstan/checkpoint/file_bytes.h"

#include <cerrno>

#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/io/failure.h"

namespace capstan::checkpoint {

void read_bytes(const io::File& file, std::int64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t moved = ::pread(file.descriptor()->fd(), into.data(), into.size(), offset);
    const io::FailedCall call{
        .verb = "read", .file = file.path(), .offset = offset, .bytes = std::ssize(into)};
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw io::io_failure(call, errno);
    if (moved == 0) throw io::unexpected_end(call);
    offset += moved;
    into = into.subspan(static_cast<std::size_t>(moved));
  }
}

std::string read_text(const io::File& file, std::int64_t offset, std::int64_t bytes) {
  // Before memory is taken: places in files from elsewhere may be anything.
  const std::int64_t size = file.size_bytes();
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
    throw IoError({.what = fmt::format("{} bytes are expected at byte {}, but the file has only {}",
                                       bytes, offset, size),
                   .where = file.path().string(),
                   .fix = "the file is truncated or damaged: restore it, or use another"});
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  read_bytes(file, offset, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string read_text_file(const std::filesystem::path& path) {
  const io::File file = io::File::open(path, {});
  return read_text(file, 0, file.size_bytes());
}

void write_bytes(const io::File& file, std::int64_t offset, std::span<const std::byte> bytes,
                 io::DurableCalls& calls) {
  while (!bytes.empty()) {
    const ssize_t moved = calls.pwrite(file.descriptor()->fd(), bytes, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      throw io::io_failure(
          {.verb = "write", .file = file.path(), .offset = offset, .bytes = std::ssize(bytes)},
          moved == 0 ? EIO : errno);
    }
    offset += moved;
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
}

void write_text_file(const std::filesystem::path& path, const std::string& text,
                     io::DurableCalls& calls) {
  const io::File file = io::File::open(path, {.access = io::Access::create});
  write_bytes(file, 0, std::as_bytes(std::span(text)), calls);
  sync_file(file, calls);
}

void sync_file(const io::File& file, io::DurableCalls& calls) {
  while (calls.fsync(file.descriptor()->fd()) != 0) {
    if (errno != EINTR) throw io::io_failure({.verb = "fsync", .file = file.path()}, errno);
  }
}

}  // namespace capstan::checkpoint
