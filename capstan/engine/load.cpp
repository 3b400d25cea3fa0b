// Loading the state of an engine: any saved stage, number of ranks and precision into any other.
#include <algorithm>
#include <array>
#include <set>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/hugging_face.h"
#include "capstan/checkpoint/reader.h"
#include "capstan/engine/engine_state.h"
#include "capstan/engine/stored_tensors.h"
#include "capstan/engine/together.h"
#include "capstan/recompute/rng_state.h"

namespace capstan::engine {

// A tensor of the checkpoint or the model without its like in the other.
struct LoadMisfit {
  enum class Kind { missing, shape, type, extra, state };
  Kind kind;
  std::string text;  // one sentence
  int param = -1;    // whose state it is
};

namespace {

using checkpoint::IndexTensor;
using checkpoint::Reader;

std::int64_t counter(const Reader& reader, const std::string& name) {
  const auto& progress = reader.index().state.progress;
  const auto found = progress.find(name);
  return found == progress.end() ? 0 : found->second;
}

// The stored tensor of a parameter, under its own name or an alias.
const IndexTensor* find_stored(const Reader& reader, const std::string& column,
                               const StoredNames& names, int param) {
  for (const std::string& each : names.all_names(param)) {
    if (const IndexTensor* const found = reader.find(column, each)) return found;
  }
  return nullptr;
}

// A few are listed. Of many of one kind, a model of another size, the first stands for all.
std::string told(const std::vector<LoadMisfit>& problems) {
  constexpr std::int64_t kListed = 8;
  using Kind = LoadMisfit::Kind;
  const std::array<std::pair<Kind, const char*>, 5> kinds = {
      {{Kind::missing, "are missing from the checkpoint"},
       {Kind::shape, "have another shape"},
       {Kind::type, "hold numbers of another kind"},
       {Kind::extra, "are in the checkpoint but not in the model"},
       {Kind::state, "states of the optimizer are missing or of another shape"}}};
  std::string text;
  for (const auto& [kind, what] : kinds) {
    const auto of_kind = [kind = kind](const LoadMisfit& each) { return each.kind == kind; };
    const std::int64_t count = std::ranges::count_if(problems, of_kind);
    const auto first = std::ranges::find_if(problems, of_kind);
    if (count > kListed) {
      text += fmt::format("\n    {} {}, the first: {}", count, what, first->text);
      continue;
    }
    for (const LoadMisfit& each : problems) {
      if (of_kind(each)) text += "\n    " + each.text;
    }
  }
  return text;
}

}  // namespace

// Which stored tensor goes where, decided before anything is touched.
struct EngineState::LoadPlan {
  std::vector<const IndexTensor*> weights;  // by parameter; null: stays as it is
  std::vector<const IndexTensor*> masters;  // likewise; null: from the weights
  std::vector<std::pair<const IndexTensor*, at::Tensor>> buffers;
  std::vector<LoadMisfit> misfits;     // of the weights
  std::vector<LoadMisfit> unloadable;  // of the optimizer
  bool has_masters = true;             // false: their files are not complete, the weights' are
  bool optimizer = false;
};

void EngineState::plan_weights(LoadPlan& plan, const Reader& reader, const StoredNames& names) {
  std::set<const IndexTensor*> used;
  const auto take = [&](const IndexTensor* stored, const std::string& name,
                        const std::vector<std::int64_t>& shape,
                        bool floating) -> const IndexTensor* {
    if (stored == nullptr) {
      plan.misfits.push_back(
          {LoadMisfit::Kind::missing, fmt::format("'{}' is missing from the checkpoint", name)});
      return nullptr;
    }
    used.insert(stored);
    if (checkpoint::is_floating(stored->spec.element) != floating) {
      plan.misfits.push_back(
          {LoadMisfit::Kind::type, fmt::format("'{}' holds {} in the checkpoint, {} in the model",
                                               name, checkpoint::name(stored->spec.element),
                                               floating ? "floating-point numbers" : "integers")});
      return nullptr;
    }
    if (stored->spec.shape == shape) return stored;
    plan.misfits.push_back(
        {LoadMisfit::Kind::shape,
         fmt::format("'{}' has shape [{}] in the checkpoint, [{}] in the model", name,
                     fmt::join(stored->spec.shape, ", "), fmt::join(shape, ", "))});
    return nullptr;
  };
  const int params = static_cast<int>(sharded->plan().params.size());
  for (int p = 0; p < params; ++p) {
    const IndexTensor* stored = nullptr;
    if (names.stored(p)) {
      stored = take(find_stored(reader, checkpoint::kModelColumn, names, p), names.name(p),
                    names.spec(p, {}).shape, /*floating=*/true);
    }
    plan.weights.push_back(stored);
    const bool has_master = stored != nullptr && plan.has_masters;
    plan.masters.push_back(has_master ? find_stored(reader, checkpoint::kMasterColumn, names, p)
                                      : nullptr);
  }
  for (const NamedTensor& buffer : extras_.buffers) {
    const std::string name = names.buffer_name(buffer.name);
    if (name.empty()) continue;
    const IndexTensor* const stored =
        take(reader.find(checkpoint::kModelColumn, name), name, buffer.tensor.sizes().vec(),
             buffer.tensor.is_floating_point());
    if (stored != nullptr) plan.buffers.emplace_back(stored, buffer.tensor);
  }
  const checkpoint::Column* const column = reader.index().find(checkpoint::kModelColumn);
  if (column == nullptr) return;
  for (const IndexTensor& tensor : column->tensors) {
    const bool alias = extras_.aliases.contains(tensor.spec.name);
    if (used.contains(&tensor) || alias) continue;
    plan.misfits.push_back(
        {LoadMisfit::Kind::extra,
         fmt::format("'{}' is in the checkpoint but not in the model", tensor.spec.name)});
  }
}

void EngineState::plan_optimizer(LoadPlan& plan, const Reader& reader, const StoredNames& names) {
  const checkpoint::TrainingState& saved = reader.index().state;
  if (saved.optimizer.empty()) {
    log_->say(LogLevel::warning,
              "the checkpoint has no optimizer state: the optimizer starts from scratch");
    return;
  }
  std::vector<std::string> wanted = state_settings_.moment_names;
  if (!options.optimizer.has_value()) wanted = saved.optimizer_states;
  for (const std::string& state : wanted) {
    const std::string column = checkpoint::kOptimizerPrefix + state;
    if (reader.index().find(column) == nullptr) {
      plan.unloadable.push_back(
          {LoadMisfit::Kind::missing,
           fmt::format("the optimizer's state '{}' is missing; saved were: {}", state,
                       fmt::join(saved.optimizer_states, ", "))});
      continue;
    }
    for (int p = 0; p < static_cast<int>(sharded->plan().params.size()); ++p) {
      if (!sharded->plan().params[static_cast<std::size_t>(p)].trainable || !names.stored(p)) {
        continue;
      }
      const IndexTensor* const stored = find_stored(reader, column, names, p);
      if (stored != nullptr && stored->spec.shape == names.spec(p, {}).shape) continue;
      plan.unloadable.push_back({LoadMisfit::Kind::state,
                                 fmt::format("'{}' of '{}' is {}", state, names.name(p),
                                             stored == nullptr ? "missing" : "of another shape"),
                                 p});
    }
  }
  plan.optimizer = plan.unloadable.empty();
}

EngineState::LoadPlan EngineState::load_plan(const Reader& reader, const LoadOptions& how,
                                             const StoredNames& names) {
  LoadPlan plan;
  if (how.load_module_only) {
    plan.has_masters = checkpoint::look_at(reader.folder()).problem.empty();
  }
  plan_weights(plan, reader, names);
  if (how.load_optimizer_states && !how.load_module_only) plan_optimizer(plan, reader, names);
  std::vector<LoadMisfit> problems = plan.unloadable;
  if (how.load_module_strict) {
    // States of a weight that does not fit do not either: the weight is told, they follow.
    std::erase_if(problems, [&](const LoadMisfit& each) {
      return each.param >= 0 && plan.weights[static_cast<std::size_t>(each.param)] == nullptr;
    });
    problems.insert(problems.begin(), plan.misfits.begin(), plan.misfits.end());
  }
  if (problems.empty() && (plan.optimizer || plan.unloadable.empty())) return plan;
  throw ConfigError(
      {.what = "the checkpoint does not fit the model and its optimizer:" + told(problems),
       .where = reader.folder().string(),
       .fix = "build the model as it was saved (`capstan checkpoint inspect --tensors` lists what "
              "it has); load_module_strict=false skips weights that do not fit, "
              "load_optimizer_states=false starts the optimizer from scratch"});
}

// This rank's shard, or everything where nothing is sharded. Masters first: the parameter follows
// from its master.
void EngineState::read_unit(Reader& reader, const LoadPlan& plan, int unit) {
  const shard::UnitSpec& spec = sharded->plan().units[static_cast<std::size_t>(unit)];
  const bool part = sharded->settings().policy.shards_optimizer();
  const at::Tensor& params = part ? sharded->unit(unit).shard() : sharded->unit(unit).flat();
  const at::Tensor& masters = spec.trainable ? sharded->states(unit).master : params;
  const int rank = sharded->groups(unit).cut->rank();
  for (const layout::SlotPiece& piece : shard::owned_elems(spec, part, rank).pieces) {
    const int param = spec.params[static_cast<std::size_t>(piece.slot)];
    const IndexTensor* stored = plan.weights[static_cast<std::size_t>(param)];
    if (stored == nullptr) continue;
    const IndexTensor* const master = plan.masters[static_cast<std::size_t>(param)];
    if (master != nullptr && options.checkpoint.load_from_fp32_weights) stored = master;
    const layout::ElemRange range = piece.in_shard;
    const at::Tensor target = masters.narrow(0, range.begin, range.size());
    read_elems(reader, *stored, {param, piece.in_slot, target});
    if (!masters.is_same(params)) params.narrow(0, range.begin, range.size()).copy_(target);
  }
}

void EngineState::read_weights(Reader& reader, const LoadPlan& plan) {
  for (std::size_t u = 0; u < sharded->plan().units.size(); ++u) {
    read_unit(reader, plan, static_cast<int>(u));
  }
  for (const auto& [stored, buffer] : plan.buffers) {
    const at::Tensor value = read_tensor(reader, *stored);
    at::Tensor(buffer).copy_(value);
  }
}

void EngineState::read_optimizer(Reader& reader, const StoredNames& names) {
  const checkpoint::TrainingState& saved = reader.index().state;
  updater_->make_states(saved.optimizer_states, saved.optimizer_scalars);
  for (const StateColumn& column : updater_->state_columns(*sharded)) {
    for (const StateColumn::Part& part : column.parts) {
      const shard::UnitSpec& spec = sharded->plan().units[static_cast<std::size_t>(part.unit)];
      const int param = spec.params[static_cast<std::size_t>(part.piece.slot)];
      const IndexTensor* const stored =
          find_stored(reader, checkpoint::kOptimizerPrefix + column.name, names, param);
      if (stored == nullptr) continue;
      read_elems(reader, *stored, {param, part.piece.in_slot, part.values});
    }
  }
}

void EngineState::restore_run(Reader& reader, const LoadOptions& how, bool optimizer) {
  const std::int64_t schedule_before = schedule_steps();
  const std::int64_t optimizer_before = optimizer_steps();
  progress.micro_steps = counter(reader, "micro_steps");
  progress.steps = counter(reader, "steps");
  progress.skipped = counter(reader, "skipped");
  progress.samples = counter(reader, "samples");
  schedule_start_ =
      progress.applied() -
      (how.load_lr_scheduler_states ? counter(reader, "schedule_steps") : schedule_before);
  optimizer_start_ =
      progress.applied() - (optimizer ? counter(reader, "optimizer_steps") : optimizer_before);
  const auto& scale = reader.index().state.loss_scale;
  // A scale belongs to its precision: one saved by a bf16 run says nothing to fp16.
  const auto& saved = reader.index().state.precision;
  const auto params = saved.find("params");
  const bool same = params != saved.end() && params->second == name(options.precision.params);
  if (optimizer && same && !scale.empty()) loss_scale = precision::restore_loss_scale(scale);
}

void EngineState::restore_rng(Reader& reader) {
  if (reader.index().find(checkpoint::kRngColumn) == nullptr) return;
  if (reader.index().state.world_size != group_->size()) {
    log_->say(
        LogLevel::warning,
        fmt::format(
            "the checkpoint has random-number states of {}, but there are {}: each keeps its own",
            counted(reader.index().state.world_size, "rank"), counted(group_->size(), "rank")));
    return;
  }
  const auto restore = [&](const char* which, at::Device device) {
    const IndexTensor* const state =
        reader.find(checkpoint::kRngColumn, fmt::format("rank{}.{}", group_->rank(), which));
    if (state != nullptr) recompute::set_generator_state(device, read_tensor(reader, *state));
  };
  restore("cpu", at::Device(at::kCPU));
  if (!device().is_cpu()) restore("device", device());
}

// One that was asked for by its tag: nothing else would do.
std::filesystem::path EngineState::named_checkpoint(const std::filesystem::path& folder,
                                                    const std::string& tag, bool only_weights) {
  checkpoint::check_tag(tag);
  if (const auto theirs = checkpoint::find_deepspeed(folder, tag)) return *theirs;
  const checkpoint::Found found = checkpoint::look_at(folder / tag);
  if (found.problem.empty()) return found.folder;
  if (only_weights && found.weights) {
    log_->say(LogLevel::warning,
              fmt::format("{} is not complete: {}; its weights are, and are loaded",
                          found.folder.string(), found.problem));
    return found.folder;
  }
  std::string fix = "remove the tag to load the newest complete one";
  if (found.weights) fix += ", or load the weights of this one alone with load_module_only";
  throw IoError({.what = "this checkpoint is not complete: " + found.problem,
                 .where = found.folder.string(),
                 .fix = fix});
}

// Rank 0 looks for all. `passed_over` are known to be of no use; those found now are told and join
// them.
EngineState::ChosenCheckpoint EngineState::find_checkpoint(
    const std::filesystem::path& folder, const LoadOptions& how,
    std::vector<checkpoint::Found>& passed_over) {
  // A folder of weights only is no checkpoint to go on from.
  if (how.load_module_only && checkpoint::is_hugging_face(folder)) return {folder};
  std::string tag = how.tag;
  if (tag.empty() && options.checkpoint.load_universal) {
    tag = checkpoint::latest_tag(folder, checkpoint::kLatestUniversalFile).value_or("");
  }
  if (!tag.empty()) return {named_checkpoint(folder, tag, how.load_module_only)};
  const auto choice = checkpoint::choose_newest(folder, passed_over);
  if (!choice) return {checkpoint::find_deepspeed(folder, "").value_or("")};
  for (const checkpoint::Found& each : choice->passed_over) {
    if (std::find(passed_over.begin(), passed_over.end(), each) != passed_over.end()) continue;
    log_->say(LogLevel::warning, checkpoint::passed_over_text(each));
    passed_over.push_back(each);
  }
  log_->say(LogLevel::info, fmt::format("loading {}, the newest complete checkpoint",
                                        choice->taken.folder.string()));
  return {choice->taken.folder, choice->taken};
}

std::optional<Loaded> EngineState::load(const std::filesystem::path& folder,
                                        const LoadOptions& how) {
  const at::NoGradGuard no_grad;
  const profile::Span span(group_->recorder().get(), {.name = "load", .kind = profile::Kind::io});
  finish_saves();
  together(*group_, device(), [&] { sharded->settle_updates(); });
  sharded->take_back();
  std::vector<checkpoint::Found> passed_over;
  while (true) {
    ChosenCheckpoint chosen;
    together(*group_, device(), [&] {
      if (group_->rank() == 0) chosen = find_checkpoint(folder, how, passed_over);
    });
    const bool newest = on_all(*group_, device(), group_->rank() != 0 || chosen.newest);
    chosen.folder = text_from(*group_, device(), chosen.folder.string(), 0);
    if (chosen.folder.empty()) return std::nullopt;
    try {
      return load_from(chosen.folder, how);
    } catch (const IoError& error) {
      // Bytes that cannot be read are no better than a missing file: the one before it is next.
      if (!newest) throw;
      if (group_->rank() != 0) continue;
      chosen.newest->problem = error.info().what;
      log_->say(LogLevel::warning, checkpoint::passed_over_text(*chosen.newest));
      passed_over.push_back(*chosen.newest);
      damaged_.push_back(*chosen.newest);
    }
  }
}

Loaded EngineState::load_from(const std::filesystem::path& chosen, const LoadOptions& how) {
  std::optional<Reader> reader;
  const StoredNames names(sharded->plan(), extras_);
  LoadPlan plan;
  together(*group_, device(), [&] {
    reader.emplace(checkpoint::open_reader(chosen));
    plan = load_plan(*reader, how, names);
  });
  Loaded loaded;
  together(*group_, device(), [&] {
    read_weights(*reader, plan);
    if (plan.optimizer) read_optimizer(*reader, names);
    if (const checkpoint::Column* const client = reader->index().find(checkpoint::kClientColumn)) {
      for (const IndexTensor& tensor : client->tensors) {
        loaded.client_tensors.push_back({tensor.spec.name, read_tensor(*reader, tensor)});
      }
    }
    if (!how.load_module_only) restore_rng(*reader);
  });
  for (std::size_t u = 0; u < sharded->plan().units.size(); ++u) {
    sharded->updates().publish(static_cast<int>(u));
  }
  sharded->updates().finish();
  sharded->clear_gradients();
  sharded->places()
      .states(sharded->settings().host.homes.optimizer.where())
      .write_back(store::Home::Which::all);
  if (!how.load_module_only) restore_run(reader.value(), how, plan.optimizer);
  const checkpoint::TrainingState& state = reader.value().index().state;
  loaded.tag = reader.value().index().tag;
  loaded.folder = chosen;
  loaded.client_state = state.client_state;
  loaded.data = state.data;
  loaded.lr_scheduler = state.lr_scheduler;
  for (const LoadMisfit& each : plan.misfits) loaded.skipped.push_back(each.text);
  return loaded;
}

}  // namespace capstan::engine
