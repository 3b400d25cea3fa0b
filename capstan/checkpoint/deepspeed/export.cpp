#include "capstan/checkpoint/deepspeed/export.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/archive_writer.h"
#include "capstan/checkpoint/deepspeed/exported_groups.h"
#include "capstan/checkpoint/deepspeed/exported_run.h"
#include "capstan/checkpoint/deepspeed/exported_tensors.h"
#include "capstan/checkpoint/deepspeed/flat_part.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/io/failure.h"
#include "capstan/json/reader.h"

namespace capstan::checkpoint {
namespace {

// The version whose layout this is.
constexpr const char* kDeepSpeedVersion = "0.19.8";

PyRef text(const char* value) { return py_text(value); }

void add_missing(Entries& entries, const char* key, PyRef value) {
  const bool there =
      std::ranges::any_of(entries, [&](const auto& entry) { return entry.first->text == key; });
  if (!there) entries.emplace_back(text(key), std::move(value));
}

PyRef size_tuple(const std::vector<std::int64_t>& shape) {
  std::vector<PyRef> dims;
  dims.reserve(shape.size());
  for (const std::int64_t dim : shape) dims.push_back(py_int(dim));
  return py_object("torch.Size", {py_tuple(std::move(dims))});
}

// What is exported, and how each file is made.
class DeepSpeedExport {
 public:
  DeepSpeedExport(Reader& reader, const ExportOptions& options)
      : reader_(reader), state_(reader.index().state), groups_(exported_groups(reader)) {
    stage_ = options.stage >= 0 ? options.stage : state_.stage;
    ranks_ = options.ranks > 0 ? options.ranks : state_.world_size;
    const auto dtype = state_.precision.find("params");
    const std::string params = dtype == state_.precision.end() ? "fp32" : dtype->second;
    half_ = params == "bf16" ? Element::bf16 : params == "fp16" ? Element::f16 : Element::f32;
    sort_tensors();
  }

  void write(const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder);
    const int models = stage_ == 3 ? ranks_ : 1;
    for (int rank = 0; rank < models; ++rank) {
      ArchiveWriter archive;
      const PyRef root = model_states(archive, rank);
      archive.write(
          folder / (stage_ == 3 ? fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", rank)
                                : "mp_rank_00_model_states.pt"),
          *root);
    }
    if (stage_ == 0) return;
    const char* const prefix = half_ == Element::bf16 ? "bf16_" : "";
    for (int rank = 0; rank < ranks_; ++rank) {
      ArchiveWriter archive;
      const PyRef root = optim_states(archive, rank);
      archive.write(
          folder / fmt::format("{}zero_pp_rank_{}_mp_rank_00_optim_states.pt", prefix, rank),
          *root);
    }
  }

 private:
  void sort_tensors() {
    const Column* const model = reader_.index().find(kModelColumn);
    const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const IndexTensor& tensor : model->tensors) {
      const std::string& name = tensor.spec.name;
      if (contains(state_.buffers, name)) {
        buffers_.push_back(&tensor);
      } else if (contains(state_.frozen, name)) {
        frozen_.push_back(&tensor);
      }
    }
  }

  std::vector<ElemSpan> flat(const std::vector<const IndexTensor*>& tensors) const {
    std::vector<ElemSpan> spans;
    spans.reserve(tensors.size());
    for (const IndexTensor* const tensor : tensors) {
      spans.push_back({tensor, 0, tensor->spec.elems()});
    }
    return spans;
  }
  std::vector<const IndexTensor*> states(const ExportedGroup& group,
                                         const std::string& name) const {
    std::vector<const IndexTensor*> found;
    found.reserve(group.params.size());
    for (const IndexTensor* const tensor : group.params) {
      found.push_back(&reader_.index().tensor(kOptimizerPrefix + name, tensor->spec.name));
    }
    return found;
  }

  // This rank's part of a flat fp32 buffer.
  std::vector<ElemSpan> part(const std::vector<const IndexTensor*>& tensors, int rank) const {
    return part_at(stage_, tensors, rank);
  }
  std::vector<ElemSpan> slice_of(const IndexTensor* tensor, int rank) const {
    return part_at(3, {tensor}, rank);
  }
  std::vector<ElemSpan> part_at(int stage, const std::vector<const IndexTensor*>& tensors,
                                int rank) const {
    std::vector<std::int64_t> sizes;
    for (const IndexTensor* const tensor : tensors) sizes.push_back(tensor->spec.elems());
    std::vector<ElemSpan> spans;
    for (const FlatPiece& piece : flat_part(sizes, stage, rank, ranks_)) {
      const bool zeros = piece.tensor < 0;
      spans.push_back({zeros ? nullptr : tensors[static_cast<std::size_t>(piece.tensor)],
                       piece.begin, piece.elems});
    }
    return spans;
  }
  PyRef fp32(ArchiveWriter& archive, const std::vector<ElemSpan>& spans) const {
    return archive.tensor(Element::f32, {count_elems(spans)},
                          fill_of(reader_, spans, Element::f32));
  }
  PyRef whole(ArchiveWriter& archive, const IndexTensor& tensor, Element type) const {
    return archive.tensor(type, tensor.spec.shape,
                          fill_of(reader_, {{&tensor, 0, tensor.spec.elems()}}, type));
  }

  std::int64_t counter(const char* name) const {
    const auto found = state_.progress.find(name);
    return found == state_.progress.end() ? 0 : found->second;
  }

  PyRef step(ArchiveWriter& archive) const {
    return archive.scalar(static_cast<float>(counter("optimizer_steps")));
  }

  // Shapes by name, in the order of the flat buffers.
  static PyRef shapes(const std::vector<const IndexTensor*>& tensors) {
    Entries entries;
    for (const IndexTensor* const tensor : tensors) {
      entries.emplace_back(py_text(tensor->spec.name), size_tuple(tensor->spec.shape));
    }
    return py_dict(std::move(entries));
  }

  PyRef module(ArchiveWriter& archive) const {
    Entries entries;
    const auto add = [&](const IndexTensor& tensor, Element type, bool placeholder) {
      entries.emplace_back(py_text(tensor.spec.name), placeholder ? archive.tensor(type, {0}, {})
                                                                  : whole(archive, tensor, type));
    };
    const bool empty = stage_ == 3;
    for (const IndexTensor& tensor : reader_.index().find(kModelColumn)->tensors) {
      const bool is_buffer = std::find(buffers_.begin(), buffers_.end(), &tensor) != buffers_.end();
      const bool is_frozen = std::find(frozen_.begin(), frozen_.end(), &tensor) != frozen_.end();
      const Element own = tensor.spec.element;
      add(tensor, is_buffer || is_frozen ? own : half_, empty && !is_buffer);
    }
    for (const auto& [alias, owner] : state_.aliases) {
      const IndexTensor& tensor = reader_.index().tensor(kModelColumn, owner);
      entries.emplace_back(py_text(alias),
                           empty ? archive.tensor(half_, {0}, {}) : whole(archive, tensor, half_));
    }
    return py_dict(std::move(entries));
  }

  PyRef frozen_fragments(ArchiveWriter& archive, int rank) const {
    Entries entries;
    for (const IndexTensor* const tensor : frozen_) {
      const Element type = tensor->spec.element;
      const std::vector<ElemSpan> slice = slice_of(tensor, rank);
      entries.emplace_back(
          py_text(tensor->spec.name),
          stage_ == 3 ? archive.tensor(type, {count_elems(slice)}, fill_of(reader_, slice, type))
                      : whole(archive, *tensor, type));
    }
    return py_dict(std::move(entries));
  }

  // Stage 0 keeps the optimizer in the model's file, tensor by tensor.
  PyRef whole_optimizer(ArchiveWriter& archive) const {
    std::vector<std::vector<Entries>> each;
    std::vector<PyRef> masters;
    for (const ExportedGroup& group : groups_) {
      std::vector<Entries>& params = each.emplace_back(group.params.size());
      for (Entries& param : params) param.emplace_back(text("step"), step(archive));
      for (const std::string& name : state_.optimizer_states) {
        const std::vector<const IndexTensor*> found = states(group, name);
        for (std::size_t i = 0; i < params.size(); ++i) {
          params[i].emplace_back(py_text(name), whole(archive, *found[i], Element::f32));
        }
      }
      std::vector<PyRef> its;
      if (half_ != Element::f32) {
        for (const IndexTensor* const master : group.masters) {
          its.push_back(whole(archive, *master, Element::f32));
        }
      }
      masters.push_back(py_list(std::move(its)));
    }
    PyRef torch = torch_state(groups_, each, decoupled_);
    if (half_ == Element::f32) return torch;
    Entries entries = loss_scale_entries(state_);
    entries.emplace_back(text("optimizer_state_dict"), std::move(torch));
    entries.emplace_back(text("fp32_groups"), py_list(std::move(masters)));
    return py_dict(std::move(entries));
  }

  ClientTensor client_tensor(ArchiveWriter& archive) const {
    return [this, &archive](const std::string& name) {
      const IndexTensor& tensor = reader_.index().tensor(kClientColumn, name);
      return whole(archive, tensor, tensor.spec.element);
    };
  }
  Entries client_values(ArchiveWriter& archive) const {
    std::vector<std::string> names;
    if (const Column* const column = reader_.index().find(kClientColumn)) {
      names.reserve(column->tensors.size());
      for (const IndexTensor& tensor : column->tensors) names.push_back(tensor.spec.name);
    }
    return client_entries(state_.client_state, names, client_tensor(archive));
  }

  PyRef model_states(ArchiveWriter& archive, int rank) const {
    std::vector<PyRef> buffers;
    buffers.reserve(buffers_.size());
    for (const IndexTensor* const tensor : buffers_) buffers.push_back(py_text(tensor->spec.name));
    std::vector<PyRef> group_shapes;
    group_shapes.reserve(groups_.size());
    for (const ExportedGroup& group : groups_) group_shapes.push_back(shapes(group.params));
    Entries shared;
    for (const auto& [alias, owner] : state_.aliases) {
      shared.emplace_back(py_text(alias), py_text(owner));
    }
    Entries root = {
        {text("module"), module(archive)},
        {text("buffer_names"), py_list(std::move(buffers))},
        {text("optimizer"), stage_ == 0 ? whole_optimizer(archive) : py_none()},
        {text("param_shapes"), stage_ == 0 ? py_none() : py_list(std::move(group_shapes))},
        {text("frozen_param_shapes"), stage_ < 2 || frozen_.empty() ? py_none() : shapes(frozen_)},
        {text("shared_params"), py_dict(std::move(shared))},
        {text("frozen_param_fragments"),
         stage_ < 2 || frozen_.empty() ? py_none() : frozen_fragments(archive, rank)},
        {text("lr_scheduler"),
         from_json(json::read(state_.lr_scheduler, "lr_scheduler", kTextLimits),
                   client_tensor(archive))},
        {text("data_sampler"), py_none()},
        {text("random_ltd"), py_none()},
        {text("skipped_steps"), py_int(counter("skipped"))},
        {text("global_steps"), py_int(counter("steps"))},
        {text("global_samples"), py_int(counter("samples"))},
        {text("dp_world_size"), py_int(ranks_)},
        {text("mp_world_size"), py_int(1)},
        {text("checkpoint_parallel_dimensions"),
         py_dict({{text("pp_degree"), py_int(1)}, {text("tp_degree"), py_int(1)}})}};
    Entries client = client_values(archive);
    std::ranges::move(client, std::back_inserter(root));
    add_missing(root, "ds_config", py_dict({}));
    add_missing(root, "ds_version", text(kDeepSpeedVersion));
    return py_dict(std::move(root));
  }

  // Which elements of which parameter stand where in this rank's part.
  static PyRef slice_mapping(const std::vector<ElemSpan>& mine) {
    Entries entries;
    std::int64_t at = 0;
    for (const ElemSpan& span : mine) {
      if (span.tensor != nullptr) {
        entries.emplace_back(
            py_text(span.tensor->spec.name),
            py_object("deepspeed.utils.tensor_fragment.fragment_address", {},
                      {{text("numel"), py_int(span.elems)}, {text("start"), py_int(at)}}));
      }
      at += span.elems;
    }
    return py_dict(std::move(entries));
  }

  // What stages 1 and 2 keep per group beside the optimizer's state.
  void add_flat_groups(Entries& dict, ArchiveWriter& archive, int rank) const {
    std::vector<PyRef> masters;
    std::vector<PyRef> paddings;
    std::vector<PyRef> alignments;
    std::vector<PyRef> counts;
    std::vector<PyRef> mappings;
    for (const ExportedGroup& group : groups_) {
      const std::vector<ElemSpan> padded = part(group.masters, rank);
      std::vector<ElemSpan> real = padded;
      std::erase_if(real, [](const ElemSpan& span) { return span.tensor == nullptr; });
      masters.push_back(fp32(archive, real));
      paddings.push_back(py_int(count_elems(padded) - count_elems(real)));
      alignments.push_back(py_list(std::vector<PyRef>(group.params.size(), py_int(0))));
      counts.push_back(py_int(ranks_));
      mappings.push_back(slice_mapping(real));
    }
    dict.emplace_back(text("single_partition_of_fp32_groups"), py_list(std::move(masters)));
    dict.emplace_back(text("group_paddings"), py_list(std::move(paddings)));
    dict.emplace_back(text("param_alignment_paddings"), py_list(std::move(alignments)));
    dict.emplace_back(text("partition_count"), py_list(std::move(counts)));
    dict.emplace_back(text("param_slice_mappings"), py_list(std::move(mappings)));
  }

  PyRef optim_states(ArchiveWriter& archive, int rank) const {
    std::vector<std::vector<Entries>> flat_states;
    for (const ExportedGroup& group : groups_) {
      Entries state = {{text("step"), step(archive)}};
      for (const std::string& name : state_.optimizer_states) {
        state.emplace_back(py_text(name), fp32(archive, part(states(group, name), rank)));
      }
      flat_states.push_back({std::move(state)});
    }
    PyRef torch = torch_state(groups_, flat_states, decoupled_);
    Entries dict = {{text("zero_stage"),
                     py_object("deepspeed.runtime.zero.config.ZeroStageEnum", {py_int(stage_)})},
                    {text("loss_scaler"), loss_scaler(state_)},
                    {text("dynamic_loss_scale"), py_bool(scales_dynamically(state_))},
                    {text("overflow"), py_bool(false)}};
    if (stage_ == 3) {
      dict.emplace_back(text("partition_count"), py_int(ranks_));
      dict.emplace_back(text("optimizer_state_dict"), std::move(torch));
      std::vector<PyRef> masters;
      masters.reserve(groups_.size());
      for (const ExportedGroup& group : groups_) {
        masters.push_back(fp32(archive, part(group.masters, rank)));
      }
      dict.emplace_back(text("fp32_flat_groups"), py_list(std::move(masters)));
    } else {
      dict.emplace_back(text("clip_grad"), py_real(0));
      dict.emplace_back(text("base_optimizer_state"), std::move(torch));
      dict.emplace_back(text("ds_version"), text(kDeepSpeedVersion));
      add_flat_groups(dict, archive, rank);
    }
    return py_dict({{text("optimizer_state_dict"), py_dict(std::move(dict))},
                    {text("ds_config"), py_dict({})},
                    {text("ds_version"), text(kDeepSpeedVersion)}});
  }

  Reader& reader_;
  const TrainingState& state_;
  std::vector<ExportedGroup> groups_;
  bool decoupled_ = !state_.optimizer.ends_with("adam");  // weight decay
  int stage_ = 0;
  int ranks_ = 1;
  Element half_ = Element::f32;
  std::vector<const IndexTensor*> frozen_, buffers_;
};

}  // namespace

void export_deepspeed(Reader& reader, const std::filesystem::path& folder,
                      const ExportOptions& options) {
  if (options.stage > 3) {
    throw ConfigError({.what = fmt::format("stage {}", options.stage),
                       .where = "--stage",
                       .fix = "use 0, 1, 2 or 3"});
  }
  check_tag(reader.index().tag);
  const std::filesystem::path target = folder / reader.index().tag;
  std::error_code error;
  if (std::filesystem::exists(target, error)) {
    throw ConfigError({.what = "this folder already exists",
                       .where = target.string(),
                       .fix = "export into another folder, or remove it first"});
  }
  // Under another name until it is whole: a killed export is not taken for a checkpoint.
  const std::filesystem::path partial = folder / fmt::format(".{}.exporting", reader.index().tag);
  std::filesystem::remove_all(partial, error);
  DeepSpeedExport(reader, options).write(partial);
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  if (disk.calls.rename(partial, target) != 0) {
    throw io::io_failure({.verb = "rename to", .file = target}, errno);
  }
  write_latest(folder, reader.index().tag, disk);
}

}  // namespace capstan::checkpoint
