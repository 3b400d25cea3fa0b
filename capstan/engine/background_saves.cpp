// Saves of an engine that go on beside its training.
#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/engine/engine_state.h"
#include "capstan/engine/stored_tensors.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

// How often a rank that waits for a save looks after the other ranks.
constexpr std::chrono::milliseconds kLookPause{100};

}  // namespace

checkpoint::TakeMemory EngineState::snapshot_memory() {
  if (snapshot_memory_ == nullptr) {
    snapshot_memory_ = store::Pool::of_host(
        snapshot_ledger_,
        "allow less memory for copies (snapshot_bytes), or save without asynchronous",
        /*pinned=*/!device().is_cpu());
  }
  return [pool = snapshot_memory_.get(),
          device = device()](std::int64_t bytes) -> std::shared_ptr<void> {
    const c10::OptionalDeviceGuard on_our_device(device);  // memory is page-locked for it
    auto held = std::make_shared<c10::DataPtr>(pool->take(bytes, store::MemoryKind::optimizer));
    return {held, held->get()};
  };
}

void EngineState::take_memory_ahead() {
  const StoredNames names(sharded->plan(), extras_);
  std::vector<HeldElems> held = weights_to_write(*sharded);
  if (options.precision.master != options.precision.params) {
    std::ranges::move(masters_to_write(*sharded), std::back_inserter(held));
  }
  for (const StateColumn& column : updater_->state_columns(*sharded)) {
    std::ranges::move(states_to_write(*sharded, column), std::back_inserter(held));
  }
  memory_ahead_ = std::make_unique<checkpoint::MemoryAhead>(
      checkpoint::device_copy_sizes(pieces_of("", held, names), options.checkpoint.snapshot_bytes),
      snapshot_memory());
}

void EngineState::save_in_background(checkpoint::SaveRequest request, checkpoint::FilePlan plan,
                                     std::vector<checkpoint::Piece> pieces) {
  const std::string partial =
      text_from(*group_, device(), checkpoint::partial_path(request).string(), 0);
  memory_ahead_.reset();
  saving_->save = std::make_unique<checkpoint::BackgroundSave>(
      checkpoint::BackgroundJob{.request = std::move(request),
                                .plan = std::move(plan),
                                .partial = partial,
                                .pieces = std::move(pieces),
                                .rank = group_->rank(),
                                .ranks = group_->size(),
                                .buffers = buffer_options(),
                                .copy_bytes = options.checkpoint.snapshot_bytes,
                                .take_memory = snapshot_memory(),
                                .timeout = options.comm.timeout});
}

void EngineState::before_change() {
  if (saving_) saving_->save->release_memory();
}

// All ranks learn together that a save has ended, so that all throw or all go on.
void EngineState::look_after_save() {
  if (!saving_) return;
  const bool ended = saving_->save->ended();
  try {
    together(*group_, device(), [&] {
      if (ended) saving_->save->wait();
    });
  } catch (const Error&) {
    saving_.reset();
    throw;
  }
  if (on_all(*group_, device(), ended)) tell_saved();
}

void EngineState::finish_saves() {
  while (saving_) {
    const auto began = std::chrono::steady_clock::now();
    saving_->save->ended(kLookPause);
    saving_->blocked += std::chrono::steady_clock::now() - began;
    look_after_save();
  }
}

void EngineState::tell_saved() {
  const std::unique_ptr<Saving> saving = std::move(saving_);
  const checkpoint::BackgroundSave::Stats stats = saving->save->stats();
  const std::chrono::duration<double> blocked = saving->blocked + stats.blocked;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - saving->began;
  log_->say(LogLevel::info,
            fmt::format("saved {} ({} in {:.2f} s, of which training stood still for {:.3f} s; {} "
                        "copied)",
                        saving->saved.folder.string(), format_bytes(saving->saved.bytes),
                        took.count(), blocked.count(), format_bytes(stats.copied_bytes)));
}

// What a run that ends in order has not waited for is still finished; only errors cannot be thrown.
void EngineState::end_save() noexcept {
  if (!saving_) return;
  try {
    if (!group_->failed() && std::uncaught_exceptions() == 0) {
      saving_->save->wait();
      tell_saved();
    }
  } catch (const std::exception& error) {
    log_->say(LogLevel::error, std::string("nothing was saved: ") + error.what());
  }
  saving_.reset();
}

}  // namespace capstan::engine
