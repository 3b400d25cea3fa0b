#include "capstan/checkpoint/verify.h"

#include <set>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/reader.h"
#include "capstan/checkpoint/safetensors.h"

namespace capstan::checkpoint {
namespace {

// Returns whether there was none.
template <typename Check>
bool note_problem(Verified& result, Check&& check) {
  try {
    check();
    return true;
  } catch (const Error& error) {
    result.problems.push_back(fmt::format("{} ({})", error.info().what, error.info().where));
    return false;
  }
}

void verify_extra_file(const Reader& reader, const FileFact& file, Verified& result) {
  const std::string text = reader.read_extra_file(file.name);
  if (file.sum != checksum(std::as_bytes(std::span(text)))) {
    result.problems.push_back(fmt::format("{} is damaged", file.name));
  }
}

// The header of a tensor file says the same as the index.
void verify_header(const Reader& reader, const FileFact& file) {
  std::error_code missing;
  if (!std::filesystem::exists(reader.folder() / file.name, missing)) {
    throw IoError({.what = file.name + " is missing", .where = reader.folder().string()});
  }
  const io::File opened = io::File::open(reader.folder() / file.name, {});
  for (const StoredTensor& stored : read_safetensors(opened).tensors) {
    for (const Column& column : reader.index().columns) {
      const IndexTensor* const tensor = reader.find(column.name, stored.spec.name);
      if (tensor == nullptr || tensor->file != file.name) continue;
      if (tensor->spec == stored.spec && tensor->begin == stored.begin) continue;
      throw IoError({.what = fmt::format("'{}' stands elsewhere or has another shape than the "
                                         "index says",
                                         stored.spec.name),
                     .where = file.name,
                     .fix = "load another checkpoint"});
    }
  }
}

}  // namespace

Verified verify(const std::filesystem::path& checkpoint) {
  Verified result;
  note_problem(result, [&] {
    Reader reader(checkpoint);
    std::set<std::string> unreadable;  // told once, not for each tensor in them
    for (const FileFact& file : reader.index().files) {
      const bool good = note_problem(result, [&] {
        if (file.sum) {
          verify_extra_file(reader, file, result);
        } else {
          verify_header(reader, file);
        }
      });
      if (!good) unreadable.insert(file.name);
    }
    for (const Column& column : reader.index().columns) {
      for (const IndexTensor& tensor : column.tensors) {
        if (unreadable.contains(tensor.file)) continue;
        ++result.tensors;
        note_problem(result, [&] {
          reader.read(tensor, 0, tensor.spec.bytes(),
                      [&](std::int64_t, std::span<const std::byte> bytes) {
                        result.bytes += std::ssize(bytes);
                      });
        });
      }
    }
  });
  return result;
}

}  // namespace capstan::checkpoint
