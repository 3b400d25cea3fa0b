#include "capstan/checkpoint/hugging_face.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/file_name.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/safetensors.h"
#include "capstan/json/reader.h"

namespace capstan::checkpoint {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kWeightsList = "model.safetensors.index.json";

std::set<std::string> weight_files(const std::filesystem::path& folder) {
  const std::filesystem::path list = folder / kWeightsList;
  if (!std::filesystem::exists(list)) return {kWeightsFile};
  std::set<std::string> files;
  const json::Document document = json::read_file(list);
  const json::Value* const map = document.root.find("weight_map");
  if (map != nullptr && map->object() != nullptr) {
    for (const json::Member& member : *map->object()) {
      if (member.value.text() == nullptr) continue;
      if (!is_plain_name(*member.value.text())) {
        throw ConfigError(
            {.what = fmt::format("'{}' is a path, not the name of a file in the folder",
                                 *member.value.text()),
             .where = list.string() + ": weight_map",
             .fix = "write the folder again with save_pretrained()"});
      }
      files.insert(*member.value.text());
    }
  }
  if (!files.empty()) return files;
  throw ConfigError({.what = "the list of weight files has no \"weight_map\" with names in it",
                     .where = list.string(),
                     .fix = "write the folder again with save_pretrained()"});
}

// Old files of GPT-2 carry the mask of attention beside the weights.
bool is_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace

bool is_hugging_face(const std::filesystem::path& folder) {
  return !std::filesystem::exists(folder / kIndexFile) &&
         (std::filesystem::exists(folder / kWeightsFile) ||
          std::filesystem::exists(folder / kWeightsList));
}

Reader open_hugging_face(const std::filesystem::path& folder) {
  const auto files = std::make_shared<std::map<std::string, io::File>>();
  Index index{.tag = folder.filename().string()};
  Column weights{kModelColumn, {}};
  std::set<std::string> names;
  for (const std::string& name : weight_files(folder)) {
    const io::File& file = files->emplace(name, io::File::open(folder / name, {})).first->second;
    for (StoredTensor& tensor : read_safetensors(file).tensors) {
      if (is_mask(tensor.spec.name)) continue;
      if (!names.insert(tensor.spec.name).second) {
        throw ConfigError({.what = fmt::format("two files hold a tensor '{}'", tensor.spec.name),
                           .where = folder.string(),
                           .fix = "write the folder again with save_pretrained()"});
      }
      weights.tensors.push_back(IndexTensor::whole(std::move(tensor.spec), name, tensor.begin));
    }
  }
  index.columns.push_back(std::move(weights));
  return {folder, std::move(index),
          [files](const IndexTensor& tensor, std::int64_t begin, std::span<std::byte> into) {
            const StoredSlice& all = tensor.slices.front();
            read_bytes(files->at(all.file), all.begin + begin, into);
          }};
}

}  // namespace capstan::checkpoint
