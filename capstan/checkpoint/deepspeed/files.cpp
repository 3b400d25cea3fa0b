#include "capstan/checkpoint/deepspeed/files.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/io/failure.h"

namespace capstan::checkpoint {
namespace {

// The number of "<prefix>zero_pp_rank_<d>_mp_rank_00_<kind>_states.pt"; nothing for other names.
std::optional<int> rank_in(std::string_view name, std::string_view kind) {
  const std::string_view mark = "zero_pp_rank_";
  const std::size_t at = name.find(mark);
  const std::string tail = fmt::format("{}_states.pt", kind);
  if (at == std::string_view::npos || !name.ends_with(tail)) return std::nullopt;
  int rank = 0;
  const char* const digits = name.data() + at + mark.size();
  if (std::from_chars(digits, name.data() + name.size(), rank).ec != std::errc{}) {
    return std::nullopt;
  }
  return rank;
}

[[noreturn]] void refuse_deepspeed(const std::filesystem::path& folder, const std::string& what) {
  throw ConfigError(
      {.what = what,
       .where = folder.string(),
       .fix = "give the folder of one tag with all files of a data-parallel DeepSpeed run"});
}

std::vector<TorchArchive> open_in_order(const std::filesystem::path& folder,
                                        const std::map<int, std::filesystem::path>& files,
                                        const char* kind) {
  std::vector<TorchArchive> opened;
  for (const auto& [rank, path] : files) {
    if (rank != static_cast<int>(opened.size())) {
      refuse_deepspeed(folder,
                       fmt::format("the {} file of rank {} is missing", kind, opened.size()));
    }
    opened.emplace_back(path);
  }
  return opened;
}

}  // namespace

const PyValue& required(const PyValue& in, std::string_view key, std::string_view where) {
  const PyValue* const found = in.find(key);
  if (found != nullptr) return *found;
  throw IoError({.what = fmt::format("there is no '{}'", key),
                 .where = std::string(where),
                 .fix = "give a checkpoint of DeepSpeed 0.19"});
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    files.push_back(at->path());
  }
  if (error) throw io::io_failure({.verb = "list", .file = folder}, error.value());
  std::sort(files.begin(), files.end());
  return files;
}

TensorSpec countable(TensorSpec spec) {
  if (is_countable(spec)) return spec;
  throw IoError({.what = fmt::format("'{}' is {}, which is not possible for a tensor", spec.name,
                                     to_text(spec)),
                 .where = "model states",
                 .fix = "give a checkpoint that DeepSpeed wrote"});
}

DeepSpeedFiles open_deepspeed(const std::filesystem::path& checkpoint) {
  DeepSpeedFiles files;
  files.folder = checkpoint;
  std::map<int, std::filesystem::path> models;
  std::map<int, std::filesystem::path> optims;
  int shared_models = 0;
  for (const std::filesystem::path& path : files_in(checkpoint)) {
    const std::string name = path.filename().string();
    if (name.starts_with("layer_")) {
      refuse_deepspeed(checkpoint, "pipeline and expert layers cannot be read: " + name);
    }
    if (name.starts_with("mp_rank_") && name.ends_with("_model_states.pt")) {
      ++shared_models;
      models[0] = path;
    } else if (const auto model = rank_in(name, "model")) {
      models[*model] = path;
    } else if (const auto optim = rank_in(name, "optim")) {
      optims[*optim] = path;
      files.bf16 = files.bf16 || name.starts_with("bf16_");
    }
  }
  if (shared_models > 1) refuse_deepspeed(checkpoint, "tensor-parallel checkpoints cannot be read");
  if (models.empty()) refuse_deepspeed(checkpoint, "there is no file *_model_states.pt");
  files.models = open_in_order(checkpoint, models, "model");
  files.optims = open_in_order(checkpoint, optims, "optimizer");
  std::error_code missing;
  files.universal = std::filesystem::is_directory(checkpoint / "zero", missing);
  const std::filesystem::path common = checkpoint / "zero" / "optimizer_state.pt";
  if (std::filesystem::exists(common, missing)) files.common.emplace(common);
  return files;
}

FileSpan part_of(const TorchArchive& archive, const PyTensor& tensor, std::int64_t begin,
                 std::int64_t elems) {
  FileSpan span = archive.span_of(tensor);
  const std::int64_t size = size_bytes(tensor.element);
  const std::int64_t held = span.bytes / size;
  if (begin < 0 || elems < 0 || elems > held || begin > held - elems) {
    throw IoError(
        {.what = fmt::format("{} elements starting at {} were requested of a tensor that has {}",
                             elems, begin, tensor.elems()),
         .where = span.file.string(),
         .fix = "the file does not fit the others: give all files of one save"});
  }
  return {span.file, span.offset + begin * size, elems * size};
}

std::vector<std::vector<TensorSpec>> param_shapes(const PyValue& model) {
  std::vector<std::vector<TensorSpec>> groups;
  const PyValue* const shapes = model.find("param_shapes");
  if (shapes == nullptr || shapes->kind != PyKind::list) return groups;
  for (const PyRef& group : shapes->items) {
    std::vector<TensorSpec>& specs = groups.emplace_back();
    for (const auto& [name, shape] : group->dict) {
      TensorSpec spec{.name = name->text};
      for (const PyRef& dim : shape->items) spec.shape.push_back(dim->integer);
      specs.push_back(countable(std::move(spec)));
    }
  }
  return groups;
}

}  // namespace capstan::checkpoint
