#include "capstan/engine/loader.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/hugging_face.h"
#include "capstan/engine/load_plan.h"
#include "capstan/engine/stages_state.h"
#include "capstan/engine/together.h"
#include "capstan/recompute/rng_state.h"

namespace capstan::engine {
namespace {

using checkpoint::IndexTensor;
using checkpoint::Reader;

std::int64_t counter(const Reader& reader, const std::string& name) {
  const auto& progress = reader.index().state.progress;
  const auto found = progress.find(name);
  return found == progress.end() ? 0 : found->second;
}

}  // namespace

// This rank's shard, or everything where nothing is sharded. Masters first: the parameter follows
// from its master.
void Loader::read_unit(Reader& reader, const LoadPlan& plan, const StoredNames& names, int unit) {
  const shard::UnitSpec& spec = common_.sharded.plan().units[static_cast<std::size_t>(unit)];
  const bool part = common_.sharded.settings().policy.shards_optimizer();
  const at::Tensor& params =
      part ? common_.sharded.unit(unit).shard() : common_.sharded.unit(unit).flat();
  const at::Tensor& masters = spec.trainable ? common_.sharded.states(unit).master : params;
  const int rank = common_.sharded.groups(unit).cut->rank();
  for (const layout::SlotPiece& piece : shard::owned_elems(spec, part, rank).pieces) {
    const int param = spec.params[static_cast<std::size_t>(piece.slot)];
    const IndexTensor* stored = plan.weights[static_cast<std::size_t>(param)];
    if (stored == nullptr) continue;
    const IndexTensor* const master = plan.masters[static_cast<std::size_t>(param)];
    if (master != nullptr && common_.options.checkpoint.load_from_fp32_weights) stored = master;
    const layout::ElemRange range = piece.in_shard;
    const at::Tensor target = masters.narrow(0, range.begin, range.size());
    read_elems(reader, *stored, names.box(param), {param, piece.in_slot, target});
    if (!masters.is_same(params)) params.narrow(0, range.begin, range.size()).copy_(target);
  }
}

void Loader::read_weights(Reader& reader, const LoadPlan& plan, const StoredNames& names) {
  for (std::size_t u = 0; u < common_.sharded.plan().units.size(); ++u) {
    read_unit(reader, plan, names, static_cast<int>(u));
  }
  for (const auto& [stored, buffer] : plan.buffers) {
    const at::Tensor value = read_tensor(reader, *stored);
    at::Tensor(buffer).copy_(value);
  }
}

void Loader::read_optimizer(Reader& reader, const StoredNames& names) {
  const checkpoint::TrainingState& saved = reader.index().state;
  common_.updater.make_states(saved.optimizer_states, saved.optimizer_scalars);
  for (const StateColumn& column : common_.updater.state_columns(common_.sharded)) {
    for (const StateColumn::Part& part : column.parts) {
      const shard::UnitSpec& spec =
          common_.sharded.plan().units[static_cast<std::size_t>(part.unit)];
      const int param = spec.params[static_cast<std::size_t>(part.piece.slot)];
      const IndexTensor* const stored =
          find_stored(reader, checkpoint::kOptimizerPrefix + column.name, names, param);
      if (stored == nullptr) continue;
      read_elems(reader, *stored, names.box(param), {param, part.piece.in_slot, part.values});
    }
  }
}

void Loader::restore_run(Reader& reader, const LoadOptions& how, bool optimizer) {
  const std::int64_t schedule_before = common_.run.schedule_steps();
  const std::int64_t optimizer_before = common_.run.optimizer_steps();
  common_.run.progress.micro_steps = counter(reader, "micro_steps");
  common_.run.progress.step_calls = common_.run.progress.micro_steps;
  common_.run.progress.steps = counter(reader, "steps");
  common_.run.progress.skipped = counter(reader, "skipped");
  common_.run.progress.samples = counter(reader, "samples");
  common_.run.schedule_start =
      common_.run.progress.applied() -
      (how.load_lr_scheduler_states ? counter(reader, "schedule_steps") : schedule_before);
  common_.run.optimizer_start = common_.run.progress.applied() -
                                (optimizer ? counter(reader, "optimizer_steps") : optimizer_before);
  const auto& scale = reader.index().state.loss_scale;
  // A scale belongs to its precision: one saved by a bf16 run says nothing to fp16.
  const auto& saved = reader.index().state.precision;
  const auto params = saved.find("params");
  const bool same =
      params != saved.end() && params->second == name(common_.options.precision.params);
  if (optimizer && same && !scale.empty())
    common_.run.loss_scale = precision::restore_loss_scale(scale);
}

void Loader::restore_rng(Reader& reader) {
  if (reader.index().find(checkpoint::kRngColumn) == nullptr) return;
  if (reader.index().state.world_size != common_.group.size()) {
    common_.log.say(
        LogLevel::warning,
        fmt::format(
            "the checkpoint has random-number states of {}, but there are {}: each keeps its own",
            counted(reader.index().state.world_size, "rank"),
            counted(common_.group.size(), "rank")));
    return;
  }
  const auto restore = [&](const char* which, at::Device device) {
    const IndexTensor* const state =
        reader.find(checkpoint::kRngColumn, fmt::format("rank{}.{}", common_.group.rank(), which));
    if (state != nullptr) recompute::set_generator_state(device, read_tensor(reader, *state));
  };
  restore("cpu", at::Device(at::kCPU));
  if (!common_.device().is_cpu()) restore("device", common_.device());
}

// One that was asked for by its tag: nothing else would do.
std::filesystem::path Loader::named_checkpoint(const std::filesystem::path& folder,
                                               const std::string& tag, bool only_weights) {
  checkpoint::check_tag(tag);
  if (const auto theirs = checkpoint::find_deepspeed(folder, tag)) return *theirs;
  const checkpoint::Found found = checkpoint::look_at(folder / tag);
  if (found.problem.empty()) return found.folder;
  if (only_weights && found.weights) {
    common_.log.say(LogLevel::warning,
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
Loader::Chosen Loader::find_checkpoint(const std::filesystem::path& folder, const LoadOptions& how,
                                       std::vector<checkpoint::Found>& passed_over) {
  // A folder of weights only is no checkpoint to go on from.
  if (how.load_module_only && checkpoint::is_hugging_face(folder)) return {folder};
  std::string tag = how.tag;
  if (tag.empty() && common_.options.checkpoint.load_universal) {
    tag = checkpoint::latest_tag(folder, checkpoint::kLatestUniversalFile).value_or("");
  }
  if (!tag.empty()) return {named_checkpoint(folder, tag, how.load_module_only)};
  const auto choice = checkpoint::choose_newest(folder, passed_over);
  if (!choice) return {checkpoint::find_deepspeed(folder, "").value_or("")};
  for (const checkpoint::Found& each : choice->passed_over) {
    if (std::find(passed_over.begin(), passed_over.end(), each) != passed_over.end()) continue;
    common_.log.say(LogLevel::warning, checkpoint::passed_over_text(each));
    passed_over.push_back(each);
  }
  common_.log.say(LogLevel::info, fmt::format("loading {}, the newest complete checkpoint",
                                              choice->taken.folder.string()));
  return {choice->taken.folder, choice->taken};
}

std::optional<Loaded> Loader::load(const std::filesystem::path& folder, const LoadOptions& how) {
  const at::NoGradGuard no_grad;
  const profile::Span span(common_.group.recorder().get(),
                           {.name = "load", .kind = profile::Kind::io});
  saver_.finish();
  together(common_.group, common_.device(), [&] { common_.sharded.settle_updates(); });
  common_.sharded.take_back();
  std::vector<checkpoint::Found> passed_over;
  while (true) {
    Chosen chosen;
    together(common_.group, common_.device(), [&] {
      if (common_.group.rank() == 0) chosen = find_checkpoint(folder, how, passed_over);
    });
    const bool newest =
        on_all(common_.group, common_.device(), common_.group.rank() != 0 || chosen.newest);
    chosen.folder = text_from(common_.group, common_.device(), chosen.folder.string(), 0);
    if (chosen.folder.empty()) return std::nullopt;
    try {
      return load_from(chosen.folder, how);
    } catch (const IoError& error) {
      // Bytes that cannot be read are no better than a missing file: the one before it is next.
      if (!newest) throw;
      if (common_.group.rank() != 0) continue;
      chosen.newest->problem = error.info().what;
      common_.log.say(LogLevel::warning, checkpoint::passed_over_text(*chosen.newest));
      passed_over.push_back(*chosen.newest);
      saver_.add_damaged(*chosen.newest);
    }
  }
}

Loaded Loader::load_from(const std::filesystem::path& chosen, const LoadOptions& how) {
  std::optional<Reader> reader;
  const StoredNames names(common_.sharded.plan(), common_.extras);
  const std::set<std::string> of_stages = names_of_stages(common_, names);
  LoadPlan plan;
  together(common_.group, common_.device(), [&] {
    reader.emplace(checkpoint::open_reader(chosen));
    plan = load_plan(common_, *reader, how, {names, of_stages});
  });
  Loaded loaded;
  together(common_.group, common_.device(), [&] {
    read_weights(*reader, plan, names);
    if (plan.optimizer) read_optimizer(*reader, names);
    if (const checkpoint::Column* const client = reader->index().find(checkpoint::kClientColumn)) {
      for (const IndexTensor& tensor : client->tensors) {
        loaded.client_tensors.push_back({tensor.spec.name, read_tensor(*reader, tensor)});
      }
    }
    if (!how.load_module_only) restore_rng(*reader);
  });
  for (std::size_t u = 0; u < common_.sharded.plan().units.size(); ++u) {
    common_.sharded.updates().publish(static_cast<int>(u));
  }
  common_.sharded.updates().finish();
  common_.sharded.clear_gradients();
  shard::ShardedModel& sharded = common_.sharded;
  sharded.places()
      .states(sharded.settings().host.homes.optimizer.where())
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
