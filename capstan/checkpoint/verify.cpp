#include "capstan/checkpoint/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>

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

// The tensors of a file as its header has them.
std::map<std::string, StoredTensor> stored_in(const Reader& reader, const FileFact& file) {
  std::map<std::string, StoredTensor> stored;
  const io::File opened = io::File::open(reader.folder() / file.name, {});
  for (StoredTensor& tensor : read_safetensors(opened).tensors) {
    const std::string name = tensor.spec.name;
    stored.emplace(name, std::move(tensor));
  }
  return stored;
}

// The header of a tensor file and the index say the same.
void verify_header(const Reader& reader, const FileFact& file) {
  std::map<std::string, StoredTensor> stored = stored_in(reader, file);
  const auto refuse = [&](const std::string& what) {
    throw IoError({.what = what, .where = file.name, .fix = "load another checkpoint"});
  };
  for (const Column& column : reader.index().columns) {
    for (const IndexTensor& tensor : column.tensors) {
      for (const StoredSlice& slice : tensor.slices) {
        if (slice.file != file.name) continue;
        const TensorSpec spec = slice_spec(tensor.spec, slice.box);
        const auto found = stored.find(spec.name);
        if (found == stored.end() || found->second != StoredTensor{spec, slice.begin}) {
          refuse(fmt::format("'{}' has another place or shape than the index says", spec.name));
        }
        stored.erase(found);
      }
    }
  }
  if (!stored.empty()) {
    refuse(fmt::format("'{}' is in the file but not in the index", stored.begin()->first));
  }
}

void verify_file(const Reader& reader, const FileFact& file, Verified& result) {
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(reader.folder() / file.name, missing);
  if (missing) {
    throw IoError({.what = file.name + " is missing", .where = reader.folder().string()});
  }
  if (static_cast<std::int64_t>(bytes) != file.bytes) {
    throw IoError(
        {.what = fmt::format("{} has {} bytes instead of {}", file.name, bytes, file.bytes),
         .where = reader.folder().string()});
  }
  if (file.sum) {
    verify_extra_file(reader, file, result);
  } else {
    verify_header(reader, file);
  }
}

}  // namespace

Verified verify(const std::filesystem::path& checkpoint) {
  Verified result;
  note_problem(result, [&] {
    Reader reader(checkpoint);
    std::set<std::string> unreadable;  // told once, not for each tensor in them
    for (const FileFact& file : reader.index().files) {
      const bool good = note_problem(result, [&] { verify_file(reader, file, result); });
      if (!good) unreadable.insert(file.name);
    }
    for (const Column& column : reader.index().columns) {
      for (const IndexTensor& tensor : column.tensors) {
        const auto in = [&](const std::string& file) { return tensor.is_in(file); };
        if (std::ranges::any_of(unreadable, in)) continue;
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
