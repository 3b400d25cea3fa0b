// Saving the state of an engine.
#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/folder_lock.h"
#include "capstan/checkpoint/part.h"
#include "capstan/engine/engine_state.h"
#include "capstan/engine/stored_tensors.h"
#include "capstan/engine/together.h"
#include "capstan/precision/loss_scale.h"
#include "capstan/recompute/rng_state.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::engine {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <typename Item>
void append(std::vector<Item>& all, std::vector<Item> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// Groups without parameters do not count.
std::vector<checkpoint::ParamGroup> stored_groups(const ParamGroups& groups,
                                                  const shard::Plan& plan,
                                                  const StoredNames& names) {
  std::vector<checkpoint::ParamGroup> stored(groups.hyper.size());
  for (std::size_t g = 0; g < stored.size(); ++g) stored[g].hyper = numbers(groups.hyper[g]);
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    const int param = static_cast<int>(p);
    if (!plan.params[p].trainable || !names.stored(param)) continue;
    stored[static_cast<std::size_t>(groups.of_param[p])].params.push_back(names.name(param));
  }
  std::erase_if(stored, [](const checkpoint::ParamGroup& each) { return each.params.empty(); });
  return stored;
}

std::map<std::string, std::string> dtypes(const precision::Options& options) {
  return {{"params", std::string(name(options.params))},
          {"master", std::string(name(options.master))},
          {"optimizer_state", std::string(name(options.optimizer_state))},
          {"grad_accum", std::string(name(options.grad_accum))}};
}

}  // namespace

// What is saved: columns for the plan of files, and this rank's pieces of them.
struct EngineState::SaveContents {
  std::vector<checkpoint::ColumnSpec> columns;
  std::vector<checkpoint::Piece> pieces;
  checkpoint::TrainingState state;
};

std::vector<NamedTensor> EngineState::rng_states() const {
  std::vector<NamedTensor> states = {{"cpu", recompute::generator_state(at::Device(at::kCPU))}};
  const at::Device device = this->device();
  if (!device.is_cpu()) states.push_back({"device", recompute::generator_state(device)});
  return states;
}

void EngineState::add_weights(SaveContents& contents, const SaveOptions& how,
                              const StoredNames& names) {
  const shard::Plan& plan = sharded->plan();
  checkpoint::ColumnSpec model{checkpoint::kModelColumn, {}};
  const auto wanted = [&](int param) {
    const bool trainable = plan.params[static_cast<std::size_t>(param)].trainable;
    return names.stored(param) && (trainable || !how.exclude_frozen_parameters);
  };
  for (int p = 0; p < static_cast<int>(plan.params.size()); ++p) {
    const shard::ParamSpec& param = plan.params[static_cast<std::size_t>(p)];
    if (!param.trainable) contents.state.frozen.push_back(param.name);
    if (wanted(p)) {
      model.tensors.push_back(names.spec(p, element_of(shard::torch_dtype(param.dtype))));
    }
  }
  std::vector<HeldElems> held = weights_to_write(*sharded);
  std::erase_if(held, [&](const HeldElems& each) { return !wanted(each.param); });
  append(contents.pieces, pieces_of(model.name, held, names));
  for (const NamedTensor& buffer : extras_.buffers) {
    const NamedTensor stored{names.buffer_name(buffer.name), buffer.tensor};
    if (stored.name.empty()) continue;
    contents.state.buffers.push_back(stored.name);
    model.tensors.push_back(spec_of(stored.name, stored.tensor));
    if (group_->rank() == 0) contents.pieces.push_back(copied_piece(model.name, stored));
  }
  contents.columns.push_back(std::move(model));
}

void EngineState::add_optimizer(SaveContents& contents, const SaveOptions& how,
                                const StoredNames& names) {
  const shard::Plan& plan = sharded->plan();
  const auto add = [&](const std::string& column, checkpoint::Element element,
                       const std::vector<HeldElems>& held) {
    checkpoint::ColumnSpec spec{column, {}};
    for (int p = 0; p < static_cast<int>(plan.params.size()); ++p) {
      const bool trainable = plan.params[static_cast<std::size_t>(p)].trainable;
      if (trainable && names.stored(p)) spec.tensors.push_back(names.spec(p, element));
    }
    contents.columns.push_back(std::move(spec));
    append(contents.pieces, pieces_of(column, held, names));
  };
  if (options.precision.master != options.precision.params) {
    add(checkpoint::kMasterColumn, element_of(shard::torch_dtype(options.precision.master)),
        masters_to_write(*sharded));
  }
  const std::vector<StateColumn> columns = updater_->state_columns(*sharded);
  // A rank without elements may not know the states; the first one has some.
  std::vector<std::string> mine;
  for (const StateColumn& column : columns) {
    if (column.parts.empty()) continue;
    mine.push_back(fmt::format("{} {}", column.name,
                               name(element_of(column.parts.front().values.scalar_type()))));
  }
  const std::string all = text_from(*group_, device(), fmt::format("{}", fmt::join(mine, ";")), 0);
  for (const std::string& item : split(all, ';')) {
    if (item.empty()) continue;
    const std::vector<std::string> words = split(item, ' ');
    const auto column = std::find_if(columns.begin(), columns.end(), [&](const StateColumn& each) {
      return each.name == words.front();
    });
    contents.state.optimizer_states.push_back(words.front());
    add(checkpoint::kOptimizerPrefix + words.front(),
        checkpoint::element_named(words.back()).value(),
        column == columns.end() ? std::vector<HeldElems>{} : states_to_write(*sharded, *column));
  }
  if (updater_->kind() == kUnknownOptimizer) {
    log_->say(LogLevel::warning,
              "the state of this optimizer cannot be read, so it is not in the checkpoint");
    return;
  }
  contents.state.optimizer = updater_->kind();
  contents.state.optimizer_scalars = updater_->state_scalars();
  contents.state.param_groups = how.param_groups;
  const ParamGroups* const groups = updater_->param_groups();
  if (contents.state.param_groups.empty() && groups != nullptr) {
    contents.state.param_groups = stored_groups(*groups, plan, names);
  }
}

void EngineState::add_rng(SaveContents& contents) {
  checkpoint::ColumnSpec rng{checkpoint::kRngColumn, {}};
  const std::vector<NamedTensor> mine = rng_states();
  for (int rank = 0; rank < group_->size(); ++rank) {
    for (const NamedTensor& each : mine) {
      const std::string name = fmt::format("rank{}.{}", rank, each.name);
      rng.tensors.push_back(spec_of(name, each.tensor));
      if (rank != group_->rank()) continue;
      contents.pieces.push_back(copied_piece(rng.name, {name, each.tensor}));
    }
  }
  contents.columns.push_back(std::move(rng));
}

EngineState::SaveContents EngineState::save_contents(const SaveOptions& how) {
  // A disk's late error on one rank must not leave the others waiting.
  together(*group_, device(), [this] { sharded->settle_updates(); });
  sharded->take_back();  // as users know it: small parameters are whole after a save
  if (!device().is_cpu()) {
    // Copies from the device are not ordered behind the stream that computes.
    c10::impl::VirtualGuardImpl(device().type()).getStream(device()).synchronize();
  }
  SaveContents contents;
  const StoredNames names(sharded->plan(), extras_);
  add_weights(contents, how, names);
  if (!how.weights_only) {
    add_optimizer(contents, how, names);
    add_rng(contents);
  }
  // Last, because only rank 0 knows it: everything before has the same place on every rank.
  checkpoint::ColumnSpec client{checkpoint::kClientColumn, {}};
  for (const NamedTensor& each : how.client_tensors) {
    if (group_->rank() != 0) continue;
    client.tensors.push_back(spec_of(each.name, each.tensor));
    contents.pieces.push_back(copied_piece(client.name, each));
  }
  contents.columns.push_back(std::move(client));
  checkpoint::TrainingState& state = contents.state;
  state.stage = options.shard.stage;
  state.world_size = group_->size();
  state.precision = dtypes(options.precision);
  const std::int64_t within = progress.micro_steps % options.batch.accumulation_steps;
  if (within != 0) {
    log_->say(
        LogLevel::warning,
        fmt::format("saved after {} of {} micro-batches of a step: their gradients are not part of "
                    "a checkpoint, so a resumed run repeats the step from its beginning",
                    within, options.batch.accumulation_steps));
  }
  state.progress = {{"micro_steps", progress.micro_steps - within},
                    {"steps", progress.steps},
                    {"skipped", progress.skipped},
                    {"samples", progress.samples},
                    {"optimizer_steps", optimizer_steps()},
                    {"schedule_steps", schedule_steps()}};
  state.loss_scale = precision::save(options.precision, loss_scale);
  state.lr_scheduler = how.lr_scheduler;
  state.data = how.data;
  state.client_state = how.client_state;
  for (const auto& [alias, owner] : extras_.aliases)
    state.aliases[alias] = names.buffer_name(owner);
  return contents;
}

void EngineState::check_tags(const std::string& tag) {
  if (options.checkpoint.tag_validation == checkpoint::TagValidation::ignore) return;
  if (same_on_all(*group_, device(), tag)) return;
  const ErrorInfo info{
      .what = fmt::format("the ranks save under different tags; the tag of this rank is {}", tag),
      .where = "checkpoint.tag_validation",
      .fix = "give every rank the same tag"};
  if (options.checkpoint.tag_validation == checkpoint::TagValidation::fail) throw ConfigError(info);
  log_->say(LogLevel::warning, info.what + "; the tag of rank 0 is used");
}

// The synchronous way: begin, write, commit, each agreed by all ranks.
void EngineState::save_now(const checkpoint::SaveRequest& request, const checkpoint::FilePlan& plan,
                           const std::vector<checkpoint::Piece>& pieces) {
  const bool first = group_->rank() == 0;
  io::DurableCalls calls;
  checkpoint::Disk disk = checkpoint::system_disk(calls);
  std::filesystem::path partial;
  together(*group_, device(), [&] {
    if (first) partial = checkpoint::begin_save(request, plan, disk);
  });
  partial = text_from(*group_, device(), partial.string(), 0);
  try {
    together(*group_, device(), [&] {
      checkpoint::PieceWriter writer(plan, partial, buffer_options(), disk);
      for (const checkpoint::Piece& piece : pieces) writer.write(piece);
      checkpoint::write_part(partial, group_->rank(), writer.finish(), disk);
    });
  } catch (const Error&) {
    if (first) checkpoint::abandon_save(partial);
    throw;
  }
  together(*group_, device(), [&] {
    if (first) checkpoint::commit_save(partial, request, plan, group_->size(), disk);
  });
}

checkpoint::BufferOptions EngineState::buffer_options() const {
  return {.bytes = options.checkpoint.buffer_bytes, .several = options.checkpoint.double_buffer};
}

std::unique_ptr<checkpoint::SaveTurn> EngineState::take_turn(const std::filesystem::path& folder) {
  if (folder_lock_ == nullptr || folder_lock_->folder() != folder) {
    folder_lock_ = std::make_unique<checkpoint::FolderLock>(folder);
    if (folder_lock_->shared()) {
      log_->say(LogLevel::warning,
                fmt::format("another engine of this process also saves into {}", folder.string()));
    }
  }
  folder_lock_->own();
  return std::make_unique<checkpoint::SaveTurn>(*folder_lock_);
}

Saved EngineState::save(const std::filesystem::path& folder, const SaveOptions& how) {
  finish_saves();  // one at a time
  const profile::Span span(group_->recorder().get(), {.name = "save", .kind = profile::Kind::io});
  const auto began = std::chrono::steady_clock::now();
  std::string tag = how.tag.empty() ? fmt::format("global_step{}", progress.steps) : how.tag;
  check_tags(tag);
  tag = text_from(*group_, device(), tag, 0);
  SaveContents contents = save_contents(how);
  checkpoint::FilePlan plan = checkpoint::plan_files(contents.columns, checkpoint::kMaxFileBytes);
  checkpoint::SaveRequest request{.folder = folder,
                                  .tag = tag,
                                  .latest = how.save_latest,
                                  .keep_last = how.keep_last,
                                  .state = std::move(contents.state),
                                  .extra_files = how.extra_files,
                                  .damaged = damaged_};
  std::unique_ptr<checkpoint::SaveTurn> turn;
  together(*group_, device(), [&] {
    checkpoint::check_tag(tag);
    if (group_->rank() == 0) turn = take_turn(folder);
  });
  const Saved saved{tag, folder / tag, plan.bytes()};
  if (how.asynchronous || options.checkpoint.asynchronous) {
    saving_ =
        std::make_unique<Saving>(Saving{.turn = std::move(turn), .saved = saved, .began = began});
    saving_->span = {
        group_->recorder().get(),
        {.name = "save in the background", .kind = profile::Kind::io, .bytes = saved.bytes}};
    save_in_background(std::move(request), std::move(plan), std::move(contents.pieces));
    saving_->blocked = std::chrono::steady_clock::now() - began;
  } else {
    save_now(request, plan, contents.pieces);
    log_->say(LogLevel::info, fmt::format("saved {} ({} in {:.2f} s)", saved.folder.string(),
                                          format_bytes(saved.bytes), seconds_since(began)));
  }
  return saved;
}

}  // namespace capstan::engine
