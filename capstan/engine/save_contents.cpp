#include "capstan/engine/save_contents.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"
#include "capstan/engine/columns_of_all.h"
#include "capstan/engine/stages_state.h"
#include "capstan/engine/stored_tensors.h"
#include "capstan/engine/together.h"
#include "capstan/precision/loss_scale.h"
#include "capstan/recompute/rng_state.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::engine {
namespace {

template <typename Item>
void append(std::vector<Item>& all, std::vector<Item> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<checkpoint::ParamGroup> stored_groups(const ParamGroups& groups,
                                                  const shard::Plan& plan,
                                                  const StoredNames& names) {
  std::vector<checkpoint::ParamGroup> stored(groups.hyper.size());
  for (std::size_t g = 0; g < stored.size(); ++g) stored[g].hyper = numbers(groups.hyper[g]);
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    const int param = static_cast<int>(p);
    if (!plan.params[p].trainable || !names.stored(param)) continue;
    std::vector<std::string>& in_group =
        stored[static_cast<std::size_t>(groups.of_param[p])].params;
    // Of a tensor whose parts are several parameters, one entry.
    if (plan.params[p].slice && std::ranges::find(in_group, names.name(param)) != in_group.end()) {
      continue;
    }
    in_group.push_back(names.name(param));
  }
  return stored;
}

std::map<std::string, std::string> dtypes(const precision::Options& options) {
  return {{"params", std::string(name(options.params))},
          {"master", std::string(name(options.master))},
          {"optimizer_state", std::string(name(options.optimizer_state))},
          {"grad_accum", std::string(name(options.grad_accum))}};
}

std::vector<NamedTensor> rng_states(at::Device device) {
  std::vector<NamedTensor> states = {{"cpu", recompute::generator_state(at::Device(at::kCPU))}};
  if (!device.is_cpu()) states.push_back({"device", recompute::generator_state(device)});
  return states;
}

void add_weights(const Common& common, SaveContents& contents, const SaveOptions& how,
                 const StoredNames& names) {
  const shard::Plan& plan = common.sharded.plan();
  checkpoint::ColumnSpec model{checkpoint::kModelColumn, {}};
  const auto wanted = [&](int param) {
    const bool trainable = plan.params[static_cast<std::size_t>(param)].trainable;
    return names.stored(param) && (trainable || !how.exclude_frozen_parameters);
  };
  for (int p = 0; p < static_cast<int>(plan.params.size()); ++p) {
    const shard::ParamSpec& param = plan.params[static_cast<std::size_t>(p)];
    if (!param.trainable) contents.state.frozen.push_back(param.name);
    if (wanted(p)) {
      names.add(p, element_of(shard::torch_dtype(param.dtype)), model);
    }
  }
  std::vector<HeldElems> held = weights_to_write(common.sharded);
  std::erase_if(held, [&](const HeldElems& each) { return !wanted(each.param); });
  append(contents.pieces, pieces_of(model.name, held, names));
  const bool first_of_stage = common.mesh.place(layout::kGridAxes.without(layout::Axis::pipe)) == 0;
  for (const NamedTensor& buffer : common.extras.buffers) {
    const NamedTensor stored{names.buffer_name(buffer.name), buffer.tensor};
    if (stored.name.empty()) continue;
    contents.state.buffers.push_back(stored.name);
    model.tensors.push_back(spec_of(stored.name, stored.tensor));
    if (first_of_stage) contents.pieces.push_back(copied_piece(model.name, stored));
  }
  contents.columns.push_back(std::move(model));
}

void add_optimizer(const Common& common, SaveContents& contents, const SaveOptions& how,
                   const StoredNames& names) {
  const shard::Plan& plan = common.sharded.plan();
  const auto add = [&](const std::string& column, checkpoint::Element element,
                       const std::vector<HeldElems>& held) {
    checkpoint::ColumnSpec spec{column, {}};
    for (int p = 0; p < static_cast<int>(plan.params.size()); ++p) {
      const bool trainable = plan.params[static_cast<std::size_t>(p)].trainable;
      if (trainable && names.stored(p)) names.add(p, element, spec);
    }
    contents.columns.push_back(std::move(spec));
    append(contents.pieces, pieces_of(column, held, names));
  };
  if (common.options.precision.master != common.options.precision.params) {
    add(checkpoint::kMasterColumn, element_of(shard::torch_dtype(common.options.precision.master)),
        masters_to_write(common.sharded));
  }
  const std::vector<StateColumn> columns = common.updater.state_columns(common.sharded);
  // A rank without elements may not know the states; the first one has some.
  std::vector<std::string> mine;
  for (const StateColumn& column : columns) {
    if (column.parts.empty()) continue;
    mine.push_back(fmt::format("{} {}", column.name,
                               name(element_of(column.parts.front().values.scalar_type()))));
  }
  const std::string all =
      text_from(common.group, common.device(), fmt::format("{}", fmt::join(mine, ";")), 0);
  for (const std::string& item : split(all, ';')) {
    if (item.empty()) continue;
    const std::vector<std::string> words = split(item, ' ');
    const auto column = std::find_if(columns.begin(), columns.end(), [&](const StateColumn& each) {
      return each.name == words.front();
    });
    contents.state.optimizer_states.push_back(words.front());
    add(checkpoint::kOptimizerPrefix + words.front(),
        checkpoint::element_named(words.back()).value(),
        column == columns.end() ? std::vector<HeldElems>{}
                                : states_to_write(common.sharded, *column));
  }
  if (common.updater.kind() == kUnknownOptimizer) {
    common.log.say(LogLevel::warning,
                   "the state of this optimizer cannot be read, so it is not in the checkpoint");
    return;
  }
  contents.state.optimizer = common.updater.kind();
  contents.state.optimizer_scalars = common.updater.state_scalars();
  contents.state.param_groups = how.param_groups;
  const ParamGroups* const groups = common.updater.param_groups();
  if (contents.state.param_groups.empty() && groups != nullptr) {
    contents.state.param_groups = stored_groups(*groups, plan, names);
  }
}

void add_rng(const Common& common, SaveContents& contents) {
  checkpoint::ColumnSpec rng{checkpoint::kRngColumn, {}};
  const std::vector<NamedTensor> mine = rng_states(common.device());
  for (int rank = 0; rank < common.group.size(); ++rank) {
    for (const NamedTensor& each : mine) {
      const std::string name = fmt::format("rank{}.{}", rank, each.name);
      rng.tensors.push_back(spec_of(name, each.tensor));
      if (rank != common.group.rank()) continue;
      contents.pieces.push_back(copied_piece(rng.name, {name, each.tensor}));
    }
  }
  contents.columns.push_back(std::move(rng));
}

}  // namespace

SaveContents save_contents(const Common& common, const SaveOptions& how) {
  // A disk's late error on one rank must not leave the others waiting.
  together(common.group, common.device(), [&] { common.sharded.settle_updates(); });
  common.sharded.take_back();  // as users know it: small parameters are whole after a save
  if (!common.device().is_cpu()) {
    // Copies from the device are not ordered behind the stream that computes.
    c10::impl::VirtualGuardImpl(common.device().type()).getStream(common.device()).synchronize();
  }
  SaveContents contents;
  const StoredNames names(common.sharded.plan(), common.extras);
  add_weights(common, contents, how, names);
  if (!how.weights_only) {
    add_optimizer(common, contents, how, names);
    add_rng(common, contents);
  }
  contents.columns = columns_of_all(common.group, common.device(), std::move(contents.columns));
  // Last, because only rank 0 knows it: everything before has the same place on every rank.
  checkpoint::ColumnSpec client{checkpoint::kClientColumn, {}};
  for (const NamedTensor& each : how.client_tensors) {
    if (common.group.rank() != 0) continue;
    client.tensors.push_back(spec_of(each.name, each.tensor));
    contents.pieces.push_back(copied_piece(client.name, each));
  }
  contents.columns.push_back(std::move(client));
  checkpoint::TrainingState& state = contents.state;
  state.stage = common.options.shard.stage;
  state.world_size = common.group.size();
  state.precision = dtypes(common.options.precision);
  const std::int64_t within =
      common.run.progress.micro_steps % common.options.batch.accumulation_steps;
  if (within != 0) {
    common.log.say(
        LogLevel::warning,
        fmt::format("saved after {} of {} micro-batches of a step: their gradients are not part of "
                    "a checkpoint, so a resumed run repeats the step from its beginning",
                    within, common.options.batch.accumulation_steps));
  }
  state.progress = {{"micro_steps", common.run.progress.micro_steps - within},
                    {"steps", common.run.progress.steps},
                    {"skipped", common.run.progress.skipped},
                    {"samples", common.run.progress.samples},
                    {"optimizer_steps", common.run.optimizer_steps()},
                    {"schedule_steps", common.run.schedule_steps()}};
  state.loss_scale = precision::save(common.options.precision, common.run.loss_scale);
  state.lr_scheduler = how.lr_scheduler;
  state.data = how.data;
  state.client_state = how.client_state;
  for (const auto& [alias, owner] : common.extras.aliases)
    state.aliases[alias] = names.buffer_name(owner);
  merge_stages(common, state);
  if (how.param_groups.empty()) {  // of ours, those without parameters do not count
    std::erase_if(state.param_groups,
                  [](const checkpoint::ParamGroup& each) { return each.params.empty(); });
  }
  return contents;
}

std::vector<checkpoint::Piece> state_pieces(const Common& common) {
  const StoredNames names(common.sharded.plan(), common.extras);
  std::vector<HeldElems> held = weights_to_write(common.sharded);
  if (common.options.precision.master != common.options.precision.params) {
    append(held, masters_to_write(common.sharded));
  }
  for (const StateColumn& column : common.updater.state_columns(common.sharded)) {
    append(held, states_to_write(common.sharded, column));
  }
  return pieces_of("", held, names);
}

}  // namespace capstan::engine
