#include "capstan/checkpoint/deepspeed/import.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/deepspeed/files.h"
#include "capstan/checkpoint/deepspeed/python_json.h"
#include "capstan/checkpoint/deepspeed/trained.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/file_name.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/hugging_face.h"
#include "capstan/json/writer.h"

namespace capstan::checkpoint {
namespace {

// Keys of the model file that are DeepSpeed's; all others are the client's.
constexpr std::array kOwnKeys = {"module",
                                 "buffer_names",
                                 "optimizer",
                                 "param_shapes",
                                 "frozen_param_shapes",
                                 "frozen_param_fragments",
                                 "shared_params",
                                 "lr_scheduler",
                                 "data_sampler",
                                 "random_ltd",
                                 "sparse_tensor_module_names",
                                 "skipped_steps",
                                 "global_steps",
                                 "global_samples",
                                 "dp_world_size",
                                 "mp_world_size",
                                 "checkpoint_parallel_dimensions",
                                 "universal_checkpoint_info"};

// Rules of a dynamic loss scale: our name and DeepSpeed's.
constexpr std::array<std::pair<const char*, std::string_view>, 5> kScaleRules = {
    {{"factor", "scale_factor"},
     {"window_steps", "scale_window"},
     {"hysteresis", "delayed_shift"},
     {"consecutive_hysteresis", "consecutive_hysteresis"},
     {"min_scale", "min_scale"}}};

std::set<std::string> names_in(const PyValue& model, const char* key) {
  std::set<std::string> names;
  const PyValue* const listed = model.find(std::string_view(key));
  if (listed == nullptr) return names;
  for (const PyRef& item : listed->items) names.insert(item->text);
  for (const auto& [name, value] : listed->dict) names.insert(name->text);
  return names;
}

TensorSpec spec_from(const std::string& name, const PyTensor& tensor) {
  return {name, tensor.element, tensor.shape};
}

// Frozen weights are whole in one file, or at stage 3 cut over the ranks' files.
ImportedTensor frozen_tensor(const DeepSpeedFiles& files, const std::string& name,
                             const PyValue& shape) {
  ImportedTensor result{kModelColumn, {.name = name}, {}};
  for (const PyRef& dim : shape.items) result.spec.shape.push_back(dim->integer);
  result.spec = countable(std::move(result.spec));
  std::int64_t left = result.spec.elems();
  for (const TorchArchive& archive : files.models) {
    const PyValue& fragments =
        required(archive.root(), "frozen_param_fragments", files.folder.string());
    const PyTensor& part = required(fragments, name.c_str(), files.folder.string()).tensor;
    const std::int64_t elems = std::min(left, part.elems());
    result.spec.element = part.element;
    result.spans.push_back(part_of(archive, part, 0, elems));
    left -= elems;
  }
  return result;
}

TrainedParams trained_of(const DeepSpeedFiles& files, int stage) {
  if (files.universal) return trained_universal(files);
  if (files.optims.empty()) return trained_whole(files);
  return stage == 3 ? trained_sliced(files) : trained_flat(files);
}

int stage_of(const DeepSpeedFiles& files) {
  if (files.universal || files.optims.empty()) return 0;
  const PyValue& dict =
      required(files.optims.front().root(), "optimizer_state_dict", files.folder.string());
  const PyValue* const stage = dict.find("zero_stage");
  if (stage == nullptr) return 1;
  const std::int64_t found = stage->kind == PyKind::object && !stage->items.empty()
                                 ? stage->items.front()->integer
                                 : stage->integer;
  if (found >= 0 && found <= 3) return static_cast<int>(found);
  throw IoError({.what = fmt::format("'zero_stage' is {}", found),
                 .where = files.folder.string(),
                 .fix = "give a checkpoint of DeepSpeed's stages 0 to 3"});
}

// Every rank of the run that saved has left its file.
void check_all_ranks(const DeepSpeedFiles& files) {
  if (files.universal || files.optims.empty()) return;
  const PyValue& dict =
      required(files.optims.front().root(), "optimizer_state_dict", files.folder.string());
  const PyValue* const count = dict.find("partition_count");
  if (count == nullptr) return;
  std::int64_t ranks = count->integer;
  for (const PyRef& group : count->items) ranks = std::max(ranks, group->integer);
  if (ranks == std::ssize(files.optims)) return;
  throw IoError({.what = fmt::format("{} saved, but there are {} *_optim_states.pt",
                                     counted(ranks, "rank"), files.optims.size()),
                 .where = files.folder.string(),
                 .fix = "give all files of one save"});
}

// Weights, masters and states in the order of the module.
void add_tensors(Imported& result, const DeepSpeedFiles& files, const TrainedParams& trained) {
  const PyValue& model = files.model();
  const std::set<std::string> buffers = names_in(model, "buffer_names");
  const PyValue* const frozen = model.find("frozen_param_shapes");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& group : param_shapes(model)) {
    for (const TensorSpec& spec : group) shapes[spec.name] = spec.shape;
  }
  std::map<std::pair<std::string, std::int64_t>, std::string> stored;  // tied weights share bytes
  std::map<std::string, std::vector<ImportedTensor>> columns;
  for (const auto& [key, value] : required(model, "module", files.folder.string()).dict) {
    const std::string& name = key->text;
    if (value->kind != PyKind::tensor || result.state.aliases.contains(name)) continue;
    const auto found = trained.by_name.find(name);
    const PyValue* const frozen_shape = frozen == nullptr ? nullptr : frozen->find(name);
    if (found != trained.by_name.end()) {
      const auto shape = shapes.find(name);
      TensorSpec spec{name, Element::f32,
                      shape != shapes.end() ? shape->second : value->tensor.shape};
      for (const auto& [state, spans] : found->second) {
        const std::string column = state.empty() ? kModelColumn : kOptimizerPrefix + state;
        columns[column].push_back({column, spec, spans});
      }
      if (found->second.contains("")) continue;
    }
    if (frozen_shape != nullptr && !files.universal) {
      columns[kModelColumn].push_back(frozen_tensor(files, name, *frozen_shape));
      result.state.frozen.push_back(name);
      continue;
    }
    const auto [first, is_new] =
        stored.emplace(std::pair(value->tensor.storage, value->tensor.offset), name);
    if (!is_new && value->tensor.elems() > 0) {
      result.state.aliases[name] = first->second;
      continue;
    }
    columns[kModelColumn].push_back({kModelColumn,
                                     spec_from(name, value->tensor),
                                     {files.models.front().span_of(value->tensor)}});
    if (buffers.contains(name)) {
      result.state.buffers.push_back(name);
    } else if (found == trained.by_name.end() && !trained.by_name.empty()) {
      result.state.frozen.push_back(name);  // stages 0 and 1 do not say so
    }
  }
  for (auto& [column, tensors] : columns) {
    for (ImportedTensor& tensor : tensors) result.tensors.push_back(std::move(tensor));
    if (column.starts_with(kOptimizerPrefix)) {
      result.state.optimizer_states.push_back(
          column.substr(std::string_view(kOptimizerPrefix).size()));
    }
  }
}

// More than any run has, and few enough that their products can be counted.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 42;
constexpr std::int64_t kMostAccumulated = std::int64_t{1} << 20;

std::int64_t checked_count(const char* key, double number, std::int64_t most) {
  if (number >= 0 && number <= static_cast<double>(most)) return static_cast<std::int64_t>(number);
  throw IoError({.what = fmt::format("'{}' is {}, which is not possible for a run", key, number),
                 .where = "model states",
                 .fix = "give a checkpoint that DeepSpeed wrote"});
}

// 0 where there is none.
std::int64_t count_of(const PyValue& dict, const char* key, std::int64_t most = kMostSteps) {
  const PyValue* const found = dict.find(std::string_view(key));
  return found == nullptr ? 0 : checked_count(key, found->number(), most);
}

// The scaler of stages 1 to 3, or at stage 0 the optimizer that scales by itself.
const PyValue* scaler_of(const DeepSpeedFiles& files) {
  if (files.common) return files.common->root().find("loss_scaler");
  if (files.optims.empty()) return files.model().find("optimizer");
  return required(files.optims.front().root(), "optimizer_state_dict", files.folder.string())
      .find("loss_scaler");
}

void add_loss_scale(TrainingState& state, const DeepSpeedFiles& files) {
  const PyValue* const scaler = scaler_of(files);
  if (scaler == nullptr || scaler->find("cur_scale") == nullptr) return;
  const PyValue* const last = scaler->find("last_overflow_iter");
  state.loss_scale = {{"scale", scaler->find("cur_scale")->number()},
                      {"steps", static_cast<double>(count_of(*scaler, "cur_iter"))},
                      {"last_overflow", last == nullptr ? -1 : last->number()},
                      {"tolerance", static_cast<double>(count_of(*scaler, "cur_hysteresis"))},
                      {"skipped_in_a_row", 0}};
  if (scaler->find("scale_window") != nullptr) {
    for (const auto& [ours, theirs] : kScaleRules) {
      const PyValue* const rule = scaler->find(theirs);
      if (rule != nullptr) state.loss_scale[ours] = rule->number();
    }
  }
  if (is_loss_scale(state.loss_scale)) return;
  throw IoError({.what = "the state of the loss scale is not possible for a run",
                 .where = files.folder.string(),
                 .fix = "give a checkpoint that DeepSpeed wrote"});
}

void add_run(TrainingState& state, const DeepSpeedFiles& files, const TrainedParams& trained) {
  const PyValue& model = files.model();
  const PyValue* const config = model.find("ds_config");
  std::int64_t accumulation =
      config == nullptr ? 1 : count_of(*config, "gradient_accumulation_steps", kMostAccumulated);
  accumulation = std::max(accumulation, std::int64_t{1});
  const std::int64_t steps = count_of(model, "global_steps");
  const std::int64_t skipped = count_of(model, "skipped_steps", steps);
  const std::int64_t applied = steps - skipped;
  const auto counted = trained.scalars.find("step");
  state.progress = {{"steps", steps},
                    {"micro_steps", steps * accumulation},
                    {"skipped", skipped},
                    {"samples", count_of(model, "global_samples", kMostCounted)},
                    {"schedule_steps", applied},
                    {"optimizer_steps", counted == trained.scalars.end()
                                            ? applied
                                            : checked_count("step", counted->second, kMostSteps)}};
  state.world_size =
      static_cast<int>(std::max<std::int64_t>(1, count_of(model, "dp_world_size", kMostRanks)));
  state.optimizer_scalars = trained.scalars;
  state.param_groups = trained.groups;
  state.optimizer = trained.by_name.empty() ? "" : "adamw";
  const PyValue* const optimizer = config == nullptr ? nullptr : config->find("optimizer");
  if (const PyValue* const type = optimizer == nullptr ? nullptr : optimizer->find("type")) {
    state.optimizer = type->text;
    for (char& c : state.optimizer)
      c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (const PyValue* const schedule = model.find("lr_scheduler")) {
    state.lr_scheduler = json::write(to_json(*schedule, "lr_scheduler"), {.indent = 0});
  }
}

// The dtype that the run trained in: that of the module's weights.
std::string params_dtype(const PyValue& model) {
  for (const auto& [name, value] : required(model, "module", "model states").dict) {
    if (value->kind != PyKind::tensor) continue;
    if (value->tensor.element == Element::bf16) return "bf16";
    if (value->tensor.element == Element::f16) return "fp16";
  }
  return "fp32";
}

void add_client_state(Imported& result, const DeepSpeedFiles& files) {
  PyValue client{.kind = PyKind::dict};
  for (const auto& [key, value] : files.model().dict) {
    const std::string& name = key->text;
    if (std::find(kOwnKeys.begin(), kOwnKeys.end(), name) != kOwnKeys.end()) continue;
    if (value->kind == PyKind::tensor) {
      result.tensors.push_back({kClientColumn,
                                spec_from(name, value->tensor),
                                {files.models.front().span_of(value->tensor)}});
    } else {
      client.dict.emplace_back(key, value);
    }
  }
  result.state.client_state = json::write(to_json(client, "client_state"), {.indent = 0});
}

// Copies bytes [begin, begin + into.size()) of the spans laid end to end.
void read_spans(const std::vector<FileSpan>& spans, std::int64_t begin, std::span<std::byte> into) {
  for (const FileSpan& span : spans) {
    if (into.empty()) return;
    if (begin >= span.bytes) {
      begin -= span.bytes;
      continue;
    }
    const auto count = static_cast<std::size_t>(
        std::min(span.bytes - begin, static_cast<std::int64_t>(into.size())));
    read_bytes(io::File::open(span.file, {}), span.offset + begin, into.first(count));
    into = into.subspan(count);
    begin = 0;
  }
}

}  // namespace

bool is_deepspeed(const std::filesystem::path& checkpoint) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(checkpoint, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().filename().string().ends_with("_model_states.pt")) return true;
  }
  return false;
}

Imported read_deepspeed(const std::filesystem::path& checkpoint) {
  const DeepSpeedFiles files = open_deepspeed(checkpoint);
  check_all_ranks(files);
  Imported result;
  result.state.stage = stage_of(files);
  const TrainedParams trained = trained_of(files, result.state.stage);
  if (const PyValue* const shared = files.model().find("shared_params")) {
    for (const auto& [alias, owner] : shared->dict) {
      result.state.aliases[alias->text] = owner->text;
    }
  }
  add_tensors(result, files, trained);
  add_run(result.state, files, trained);
  add_loss_scale(result.state, files);
  result.state.precision = {{"params", params_dtype(files.model())}, {"master", "fp32"}};
  add_client_state(result, files);
  for (const ImportedTensor& tensor : result.tensors) {
    std::int64_t bytes = 0;
    for (const FileSpan& span : tensor.spans) bytes += span.bytes;
    if (bytes == tensor.spec.bytes()) continue;
    throw IoError({.what = fmt::format("'{}' is {}, but the files have {} bytes of it",
                                       tensor.spec.name, to_text(tensor.spec), bytes),
                   .where = checkpoint.string(),
                   .fix = "give all files of one save"});
  }
  return result;
}

std::optional<std::filesystem::path> find_deepspeed(const std::filesystem::path& folder,
                                                    const std::string& tag) {
  if (tag.empty() && is_deepspeed(folder)) return folder;
  const std::string chosen = tag.empty() ? latest_tag(folder).value_or("") : tag;
  if (!is_plain_name(chosen) || !is_deepspeed(folder / chosen)) return std::nullopt;
  return folder / chosen;
}

Reader open_reader(const std::filesystem::path& checkpoint) {
  if (is_hugging_face(checkpoint)) return open_hugging_face(checkpoint);
  if (!is_deepspeed(checkpoint)) return Reader(checkpoint);
  auto imported = std::make_shared<Imported>(read_deepspeed(checkpoint));
  Index index{.tag = checkpoint.filename().string(), .state = imported->state};
  std::map<std::pair<std::string, std::string>, const ImportedTensor*> sources;
  for (const ImportedTensor& tensor : imported->tensors) {
    if (index.columns.empty() || index.columns.back().name != tensor.column) {
      index.columns.push_back({tensor.column, {}});
    }
    // The column is what the source knows it by; it lies in several files.
    index.columns.back().tensors.push_back(IndexTensor::whole(tensor.spec, tensor.column));
    sources[{tensor.column, tensor.spec.name}] = &tensor;
  }
  return {checkpoint, std::move(index),
          [imported, sources](const IndexTensor& tensor, std::int64_t begin,
                              std::span<std::byte> into) {
            const std::string& column = tensor.slices.front().file;
            read_spans(sources.at({column, tensor.spec.name})->spans, begin, into);
          }};
}

}  // namespace capstan::checkpoint
