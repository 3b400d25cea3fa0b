#include "capstan/checkpoint/deepspeed/trained.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/file_name.h"

namespace capstan::checkpoint {
namespace {

const char* const kOptimizerDict = "optimizer_state_dict";

std::string file_of(const DeepSpeedFiles& files) { return files.folder.string(); }

// Numbers of a parameter group, under the names that we keep them by.
std::map<std::string, double> numbers_of(const PyValue& group) {
  std::map<std::string, double> numbers;
  for (const char* const name : {"lr", "eps", "weight_decay", "momentum"}) {
    if (const PyValue* const value = group.find(std::string_view(name))) {
      numbers[name] = value->number();
    }
  }
  if (const PyValue* const betas = group.find("betas");
      betas != nullptr && betas->items.size() == 2) {
    numbers["beta1"] = betas->items[0]->number();
    numbers["beta2"] = betas->items[1]->number();
  }
  return numbers;
}

// `names`: of each group's parameters.
void add_groups(TrainedParams& trained, const PyValue& torch_state,
                const std::vector<std::vector<std::string>>& names) {
  const PyValue* const groups = torch_state.find("param_groups");
  if (groups == nullptr || groups->items.empty()) return;
  for (std::size_t g = 0; g < groups->items.size() && g < names.size(); ++g) {
    trained.groups.push_back({names[g], numbers_of(*groups->items[g])});
  }
  trained.scalars.merge(numbers_of(*groups->items.front()));
}

std::vector<std::vector<std::string>> names_by_group(const PyValue& model) {
  std::vector<std::vector<std::string>> names;
  for (const std::vector<TensorSpec>& group : param_shapes(model)) {
    names.emplace_back();
    for (const TensorSpec& param : group) names.back().push_back(param.name);
  }
  return names;
}

// The tensors of one parameter's or group's state that have an element for each of its elements.
template <typename Each>
void each_column(const PyValue& state, Each&& each) {
  for (const auto& [name, value] : state.dict) {
    if (value->kind == PyKind::tensor && name->text != "step") each(name->text, value->tensor);
  }
}

const PyValue& group_state(const PyValue& torch_state, std::int64_t group, std::string_view where) {
  const PyValue* const found = required(torch_state, "state", where).find(group);
  if (found != nullptr) return *found;
  throw IoError({.what = fmt::format("the optimizer has no state for group {}", group),
                 .where = std::string(where),
                 .fix = "give a checkpoint that was saved after the first step, without "
                        "elastic_checkpoint"});
}

double first_number(const TorchArchive& archive, const PyTensor& tensor) {
  const FileSpan span = archive.span_of(tensor);
  const io::File file = io::File::open(span.file, {});
  const std::string bytes = read_text(file, span.offset, size_bytes(tensor.element));
  if (tensor.element == Element::f32) {
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  if (tensor.element == Element::f64) {
    double value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::int64_t value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return static_cast<double>(value);
}

// One step counter stands for all; it is a number, or a tensor of one.
void add_step(std::map<std::string, double>& scalars, const TorchArchive& archive,
              const PyValue& state) {
  const PyValue* const step = state.find("step");
  if (step == nullptr || scalars.contains("step")) return;
  scalars["step"] =
      step->kind == PyKind::tensor ? first_number(archive, step->tensor) : step->number();
}

}  // namespace

// Each rank tells which range of which parameter its part holds, and where.
TrainedParams trained_flat(const DeepSpeedFiles& files) {
  TrainedParams trained;
  for (const TorchArchive& archive : files.optims) {
    const PyValue& dict = required(archive.root(), kOptimizerDict, file_of(files));
    const PyValue& masters = required(dict, "single_partition_of_fp32_groups", file_of(files));
    const PyValue& torch_state = required(dict, "base_optimizer_state", file_of(files));
    const PyValue& mappings = required(dict, "param_slice_mappings", file_of(files));
    if (trained.groups.empty()) add_groups(trained, torch_state, names_by_group(files.model()));
    for (std::size_t g = 0; g < masters.items.size() && g < mappings.items.size(); ++g) {
      const PyValue& state = group_state(torch_state, static_cast<std::int64_t>(g), file_of(files));
      add_step(trained.scalars, archive, state);
      for (const auto& [name, address] : mappings.items[g]->dict) {
        const std::int64_t start = required(*address, "start", file_of(files)).integer;
        const std::int64_t elems = required(*address, "numel", file_of(files)).integer;
        StateSpans& spans = trained.by_name[name->text];
        spans[""].push_back(part_of(archive, masters.items[g]->tensor, start, elems));
        each_column(state, [&](const std::string& column, const PyTensor& tensor) {
          spans[column].push_back(part_of(archive, tensor, start, elems));
        });
      }
    }
  }
  return trained;
}

// Every parameter is cut into equal slices, the last one filled up; a rank's slices of a sub-group
// stand one after another.
TrainedParams trained_sliced(const DeepSpeedFiles& files) {
  TrainedParams trained;
  const auto ranks = static_cast<std::int64_t>(files.optims.size());
  const auto groups = param_shapes(files.model());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const TorchArchive& archive = files.optims[static_cast<std::size_t>(rank)];
    const PyValue& dict = required(archive.root(), kOptimizerDict, file_of(files));
    const PyValue& masters = required(dict, "fp32_flat_groups", file_of(files));
    const PyValue& torch_state = required(dict, kOptimizerDict, file_of(files));
    if (trained.groups.empty()) add_groups(trained, torch_state, names_by_group(files.model()));
    for (std::size_t g = 0; g < groups.size() && g < masters.items.size(); ++g) {
      const PyValue& state = group_state(torch_state, static_cast<std::int64_t>(g), file_of(files));
      add_step(trained.scalars, archive, state);
      std::int64_t at = 0;
      for (const TensorSpec& param : groups[g]) {
        const std::int64_t slice = (param.elems() + ranks - 1) / ranks;
        const std::int64_t mine = std::clamp(param.elems() - rank * slice, std::int64_t{0}, slice);
        StateSpans& spans = trained.by_name[param.name];
        spans[""].push_back(part_of(archive, masters.items[g]->tensor, at, mine));
        each_column(state, [&](const std::string& column, const PyTensor& tensor) {
          spans[column].push_back(part_of(archive, tensor, at, mine));
        });
        at += slice;
      }
    }
  }
  return trained;
}

namespace {

std::set<std::string> buffer_names(const PyValue& model) {
  std::set<std::string> names;
  const PyValue* const listed = model.find("buffer_names");
  if (listed == nullptr) return names;
  for (const PyRef& name : listed->items) names.insert(name->text);
  return names;
}

[[noreturn]] void refuse_unnamed(const std::string& what) {
  throw IoError({.what = what,
                 .where = "model states",
                 .fix = "save with zero_optimization.stage 1, whose files name parameters"});
}

using Shape = std::vector<std::int64_t>;

// Stage 0 counts parameters instead of naming them: the names are those of the module in order,
// without buffers. A shape that does not fit the next name belongs to a later one: that between is
// frozen, or in another group.
std::vector<std::string> names_by_shape(const PyValue& model, const std::vector<Shape>& shapes) {
  std::vector<std::string> names;
  const std::set<std::string> buffers = buffer_names(model);
  const PyValue& module = required(model, "module", "model states");
  auto next = module.dict.begin();
  for (const Shape& shape : shapes) {
    while (next != module.dict.end() &&
           (buffers.contains(next->first->text) || next->second->kind != PyKind::tensor ||
            next->second->tensor.shape != shape)) {
      ++next;
    }
    if (next == module.dict.end()) {
      refuse_unnamed("the optimizer's parameters do not follow the order of the model's");
    }
    names.push_back(next->first->text);
    ++next;
  }
  return names;
}

// Each group in the module's order. Where two groups have a shape in common nothing tells which of
// them a parameter is in.
std::vector<std::vector<std::string>> names_of_groups(
    const PyValue& model, const std::vector<std::vector<Shape>>& groups) {
  std::vector<std::vector<std::string>> names;
  std::set<Shape> seen;
  for (const std::vector<Shape>& shapes : groups) {
    names.push_back(names_by_shape(model, shapes));
    const std::set<Shape> its(shapes.begin(), shapes.end());
    for (const Shape& shape : its) {
      if (!seen.insert(shape).second) {
        refuse_unnamed(
            fmt::format("two groups have parameters of shape [{}], and nothing says which is which",
                        fmt::join(shape, ", ")));
      }
    }
  }
  return names;
}

// The parameters of the module in order, each once, without buffers.
std::vector<std::pair<std::string, std::int64_t>> module_params(const PyValue& model) {
  const std::set<std::string> buffers = buffer_names(model);
  std::vector<std::pair<std::string, std::int64_t>> params;
  std::set<std::pair<std::string, std::int64_t>> seen;  // tied ones share their storage
  for (const auto& [name, value] : required(model, "module", "model states").dict) {
    if (value->kind != PyKind::tensor || buffers.contains(name->text)) continue;
    const PyTensor& tensor = value->tensor;
    if (!seen.emplace(tensor.storage, tensor.offset).second && tensor.elems() > 0) continue;
    params.emplace_back(name->text, tensor.elems());
  }
  return params;
}

// A fused optimizer at stage 0: masters and states are one flat tensor without names, so that they
// are known only where every parameter is trained and all are in one group.
TrainedParams trained_fused(const DeepSpeedFiles& files, const PyValue& optimizer) {
  const TorchArchive& archive = files.models.front();
  const PyValue& groups = required(optimizer, "fp32_groups_flat", file_of(files));
  const PyValue& torch_state = required(optimizer, kOptimizerDict, file_of(files));
  const auto params = module_params(files.model());
  std::int64_t elems = 0;
  bool too_many = false;
  for (const auto& [name, count] : params) {
    too_many = too_many || __builtin_add_overflow(elems, count, &elems);
  }
  if (too_many || groups.items.size() != 1 || groups.items.front()->tensor.elems() != elems) {
    throw IoError({.what = "the flat master weights are not those of all parameters in one group",
                   .where = file_of(files),
                   .fix = "save with zero_optimization.stage 1, whose files name parameters"});
  }
  TrainedParams trained;
  std::vector<std::string> names;
  names.reserve(params.size());
  for (const auto& [name, count] : params) names.push_back(name);
  add_groups(trained, torch_state, {names});
  const PyValue* const state = required(torch_state, "state", file_of(files)).find(std::int64_t{0});
  if (state != nullptr) add_step(trained.scalars, archive, *state);
  std::int64_t at = 0;
  for (const auto& [name, count] : params) {
    StateSpans& spans = trained.by_name[name];
    spans[""].push_back(part_of(archive, groups.items.front()->tensor, at, count));
    if (state != nullptr) {
      each_column(*state, [&, count = count](const std::string& column, const PyTensor& tensor) {
        spans[column].push_back(part_of(archive, tensor, at, count));
      });
    }
    at += count;
  }
  return trained;
}

// Of the masters, or where there are none of the first moments; by group.
std::vector<std::vector<Shape>> shapes_of_groups(const PyValue& torch_state,
                                                 const PyValue* masters) {
  std::vector<std::vector<Shape>> groups;
  if (masters != nullptr) {
    for (const PyRef& group : masters->items) {
      groups.emplace_back();
      for (const PyRef& master : group->items) groups.back().push_back(master->tensor.shape);
    }
    return groups;
  }
  for (const PyRef& group : required(torch_state, "param_groups", "model states").items) {
    groups.emplace_back();
    for (const PyRef& param : required(*group, "params", "model states").items) {
      const PyValue* const state =
          required(torch_state, "state", "model states").find(param->integer);
      const PyValue* const first = state == nullptr ? nullptr : state->find("exp_avg");
      if (first != nullptr) groups.back().push_back(first->tensor.shape);
    }
  }
  return groups;
}

}  // namespace

TrainedParams trained_whole(const DeepSpeedFiles& files) {
  TrainedParams trained;
  const TorchArchive& archive = files.models.front();
  const PyValue* optimizer = files.model().find("optimizer");
  if (optimizer == nullptr || optimizer->kind != PyKind::dict) return trained;
  const PyValue* const masters = optimizer->find("fp32_groups");
  if (optimizer->find("fp32_groups_flat") != nullptr) return trained_fused(files, *optimizer);
  const PyValue* const inner = optimizer->find(std::string_view(kOptimizerDict));
  const PyValue& torch_state = inner != nullptr ? *inner : *optimizer;
  const PyValue& states = required(torch_state, "state", file_of(files));
  const std::vector<std::vector<Shape>> shapes = shapes_of_groups(torch_state, masters);
  const auto names = names_of_groups(files.model(), shapes);
  add_groups(trained, torch_state, names);
  std::int64_t index = 0;
  for (std::size_t g = 0; g < names.size(); ++g) {
    for (std::size_t i = 0; i < names[g].size(); ++i, ++index) {
      StateSpans& spans = trained.by_name[names[g][i]];
      if (masters != nullptr) {
        spans[""].push_back(archive.span_of(masters->items[g]->items[i]->tensor));
      }
      const PyValue* const state = states.find(index);
      if (state == nullptr) continue;
      add_step(trained.scalars, archive, *state);
      each_column(*state, [&](const std::string& column, const PyTensor& tensor) {
        spans[column].push_back(archive.span_of(tensor));
      });
    }
  }
  return trained;
}

// A file per parameter and state: the tensor itself, or a dict that holds it as "param".
TrainedParams trained_universal(const DeepSpeedFiles& files) {
  TrainedParams trained;
  for (const std::vector<TensorSpec>& group : param_shapes(files.model())) {
    for (const TensorSpec& param : group) {
      if (!is_plain_name(param.name)) {
        throw IoError({.what = fmt::format("'{}' is not the name of a parameter", param.name),
                       .where = file_of(files),
                       .fix = "give a universal checkpoint that DeepSpeed wrote"});
      }
      for (const std::filesystem::path& path : files_in(files.folder / "zero" / param.name)) {
        const std::string name = path.stem().string();
        const TorchArchive archive(path);
        const PyValue* const inside = archive.root().find("param");
        const PyValue& value = inside != nullptr ? *inside : archive.root();
        if (name == "step" && value.kind == PyKind::tensor) {
          trained.scalars["step"] = first_number(archive, value.tensor);
        } else if (name == "step") {
          trained.scalars["step"] = value.number();
        } else if (value.kind == PyKind::tensor) {
          trained.by_name[param.name][name == "fp32" ? "" : name].push_back(
              part_of(archive, value.tensor, 0, param.elems()));
        }
      }
    }
  }
  if (files.common) {
    add_groups(trained, files.common->root(), names_by_group(files.model()));
    if (const PyValue* const state = files.common->root().find("state")) {
      if (const PyValue* const first = state->find(std::int64_t{0})) {
        add_step(trained.scalars, *files.common, *first);
      }
    }
  }
  return trained;
}

}  // namespace capstan::checkpoint
