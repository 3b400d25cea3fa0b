#include "capstan/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::checkpoint {
namespace {

constexpr std::int64_t kLengthBytes = 8;
// Tensors begin on a multiple of this: readers map files and want aligned elements.
constexpr std::int64_t kDataAlignBytes = 64;

[[noreturn]] void refuse(const io::File& file, const std::string& what) {
  throw IoError({.what = what,
                 .where = file.path().string(),
                 .fix = "the file is damaged or not a safetensors file: load another checkpoint"});
}

json::Value header_entry(const TensorSpec& spec, std::int64_t begin) {
  json::Array shape;
  for (const std::int64_t dim : spec.shape) shape.emplace_back(dim);
  json::Value entry{json::Object{}};
  entry.add("dtype", json::Value(name(spec.element)));
  entry.add("shape", json::Value(std::move(shape)));
  entry.add("data_offsets",
            json::Value(json::Array{json::Value(begin), json::Value(begin + spec.bytes())}));
  return entry;
}

std::int64_t require_count(const io::File& file, const json::Value* value) {
  if (value == nullptr || value->integer() == nullptr || *value->integer() < 0) {
    refuse(file, "the header has something else where a count belongs");
  }
  return *value->integer();
}

StoredTensor read_entry(const io::File& file, const json::Member& member, std::int64_t data_begin) {
  const json::Value* const dtype = member.value.find("dtype");
  const json::Value* const shape = member.value.find("shape");
  const json::Value* const offsets = member.value.find("data_offsets");
  if (dtype == nullptr || dtype->text() == nullptr || shape == nullptr ||
      shape->array() == nullptr || offsets == nullptr || offsets->array() == nullptr ||
      offsets->array()->size() != 2) {
    refuse(file, fmt::format("the header's entry '{}' is incomplete", member.key));
  }
  const auto element = element_named(*dtype->text());
  if (!element) {
    refuse(file, fmt::format("tensor '{}' has the unknown type {}", member.key, *dtype->text()));
  }
  StoredTensor tensor{.spec = {.name = member.key, .element = *element, .shape = {}}};
  for (const json::Value& dim : *shape->array()) {
    tensor.spec.shape.push_back(require_count(file, &dim));
  }
  if (!is_countable(tensor.spec)) {
    refuse(file, fmt::format("tensor '{}' is {}, more than a file can hold", member.key,
                             to_text(tensor.spec)));
  }
  const std::int64_t begin = require_count(file, &offsets->array()->front());
  const std::int64_t end = require_count(file, &offsets->array()->back());
  if (end - begin != tensor.spec.bytes()) {
    refuse(file, fmt::format("tensor '{}' is {} but has {} bytes", member.key, to_text(tensor.spec),
                             end - begin));
  }
  if (end > file.size_bytes()) {
    refuse(file, fmt::format("tensor '{}' extends past the end of the file", member.key));
  }
  tensor.begin = data_begin + begin;
  return tensor;
}

void check_no_gaps(const io::File& file, const Safetensors& contents) {
  std::int64_t next = static_cast<std::int64_t>(contents.header.size());
  for (const StoredTensor& tensor : contents.tensors) {
    if (tensor.begin != next) {
      refuse(file, fmt::format("tensor '{}' begins at byte {} instead of {}", tensor.spec.name,
                               tensor.begin, next));
    }
    next = tensor.end();
  }
  if (next != contents.file_bytes) {
    refuse(file,
           fmt::format("the file has {} bytes, but its header says {}", contents.file_bytes, next));
  }
}

}  // namespace

std::string to_text(const TensorSpec& spec) {
  return fmt::format("{} [{}]", name(spec.element), fmt::join(spec.shape, ", "));
}

Safetensors lay_out(const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  json::Value header{json::Object{}};
  if (!metadata.empty()) {
    json::Value texts{json::Object{}};
    for (const auto& [key, text] : metadata) texts.add(key, json::Value(text));
    header.add("__metadata__", std::move(texts));
  }
  Safetensors result{.tensors = {}, .metadata = metadata};
  std::int64_t next = 0;
  for (const TensorSpec& spec : tensors) {
    header.object()->push_back({spec.name, header_entry(spec, next), {}});
    result.tensors.push_back({spec, next});
    next += spec.bytes();
  }
  std::string text = json::write(header, {.indent = 0});
  const auto begin = static_cast<std::int64_t>(text.size()) + kLengthBytes;
  const std::int64_t aligned = (begin + kDataAlignBytes - 1) / kDataAlignBytes * kDataAlignBytes;
  text.append(static_cast<std::size_t>(aligned - begin), ' ');
  const std::uint64_t length = text.size();
  result.header.resize(kLengthBytes);
  std::memcpy(result.header.data(), &length, kLengthBytes);  // little-endian, as we are
  result.header += text;
  for (StoredTensor& tensor : result.tensors) tensor.begin += aligned;
  result.file_bytes = aligned + next;
  return result;
}

Safetensors read_safetensors(const io::File& file) {
  Safetensors result;
  result.file_bytes = file.size_bytes();
  if (result.file_bytes < kLengthBytes) refuse(file, "the file ends before its header");
  result.header = read_text(file, 0, kLengthBytes);
  std::uint64_t length = 0;
  std::memcpy(&length, result.header.data(), kLengthBytes);
  const auto limit = std::min(kMaxHeaderBytes, result.file_bytes - kLengthBytes);
  if (length > static_cast<std::uint64_t>(limit)) {
    refuse(file, fmt::format("the header should have {} bytes", length));
  }
  const std::string text = read_text(file, kLengthBytes, static_cast<std::int64_t>(length));
  result.header += text;
  const auto data_begin = static_cast<std::int64_t>(result.header.size());
  json::Value header;
  try {
    header = json::read(text, file.path().string(), {.bytes = kMaxHeaderBytes});
  } catch (const ConfigError& error) {
    refuse(file, "the header is not JSON: " + error.info().what);
  }
  if (header.object() == nullptr) refuse(file, "the header is not a JSON object");
  for (const json::Member& member : *header.object()) {
    if (member.key != "__metadata__") {
      result.tensors.push_back(read_entry(file, member, data_begin));
    } else if (member.value.object() != nullptr) {
      for (const json::Member& each : *member.value.object()) {
        if (each.value.text() != nullptr) result.metadata[each.key] = *each.value.text();
      }
    }
  }
  std::stable_sort(result.tensors.begin(), result.tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) { return a.begin < b.begin; });
  check_no_gaps(file, result);
  return result;
}

}  // namespace capstan::checkpoint
