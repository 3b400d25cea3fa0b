#include "capstan/engine/saver.h"

#include <exception>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/part.h"
#include "capstan/engine/save_contents.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

// How often a rank that waits for a save looks after the other ranks.
constexpr std::chrono::milliseconds kLookPause{100};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Saver::Saver(const Common& common) : common_(common) {}

// What a run that ends in order has not waited for is still finished; only errors cannot be thrown.
Saver::~Saver() {
  if (!saving_) return;
  try {
    if (!common_.group.failed() && std::uncaught_exceptions() == 0) {
      saving_->save->wait();
      tell_saved();
    }
  } catch (const std::exception& error) {
    common_.log.say(LogLevel::error, std::string("nothing was saved: ") + error.what());
  }
}

void Saver::check_tags(const std::string& tag) {
  if (common_.options.checkpoint.tag_validation == checkpoint::TagValidation::ignore) return;
  if (same_on_all(common_.group, common_.device(), tag)) return;
  const ErrorInfo info{
      .what = fmt::format("the ranks save under different tags; the tag of this rank is {}", tag),
      .where = "checkpoint.tag_validation",
      .fix = "give every rank the same tag"};
  if (common_.options.checkpoint.tag_validation == checkpoint::TagValidation::fail)
    throw ConfigError(info);
  common_.log.say(LogLevel::warning, info.what + "; the tag of rank 0 is used");
}

// The synchronous way: begin, write, commit, each agreed by all ranks.
void Saver::save_now(const checkpoint::SaveRequest& request, const checkpoint::FilePlan& plan,
                     const std::vector<checkpoint::Piece>& pieces) {
  const bool first = common_.group.rank() == 0;
  io::DurableCalls calls;
  checkpoint::Disk disk = checkpoint::system_disk(calls);
  std::filesystem::path partial;
  together(common_.group, common_.device(), [&] {
    if (first) partial = checkpoint::begin_save(request, plan, disk);
  });
  partial = text_from(common_.group, common_.device(), partial.string(), 0);
  try {
    together(common_.group, common_.device(), [&] {
      checkpoint::PieceWriter writer(plan, partial, buffer_options(), disk);
      for (const checkpoint::Piece& piece : pieces) writer.write(piece);
      checkpoint::write_part(partial, common_.group.rank(), writer.finish(), disk);
    });
  } catch (const Error&) {
    if (first) checkpoint::abandon_save(partial);
    throw;
  }
  together(common_.group, common_.device(), [&] {
    if (first) checkpoint::commit_save(partial, request, plan, common_.group.size(), disk);
  });
}

checkpoint::BufferOptions Saver::buffer_options() const {
  return {.bytes = common_.options.checkpoint.buffer_bytes,
          .several = common_.options.checkpoint.double_buffer};
}

std::unique_ptr<checkpoint::SaveTurn> Saver::take_turn(const std::filesystem::path& folder) {
  if (folder_lock_ == nullptr || folder_lock_->folder() != folder) {
    folder_lock_ = std::make_unique<checkpoint::FolderLock>(folder);
    if (folder_lock_->shared()) {
      common_.log.say(
          LogLevel::warning,
          fmt::format("another engine of this process also saves into {}", folder.string()));
    }
  }
  folder_lock_->own();
  return std::make_unique<checkpoint::SaveTurn>(*folder_lock_);
}

Saved Saver::save(const std::filesystem::path& folder, const SaveOptions& how) {
  finish();  // one at a time
  const profile::Span span(common_.group.recorder().get(),
                           {.name = "save", .kind = profile::Kind::io});
  const auto began = std::chrono::steady_clock::now();
  std::string tag =
      how.tag.empty() ? fmt::format("global_step{}", common_.run.progress.steps) : how.tag;
  check_tags(tag);
  tag = text_from(common_.group, common_.device(), tag, 0);
  SaveContents contents = save_contents(common_, how);
  checkpoint::FilePlan plan = checkpoint::plan_files(contents.columns, checkpoint::kMaxFileBytes);
  checkpoint::SaveRequest request{.folder = folder,
                                  .tag = tag,
                                  .latest = how.save_latest,
                                  .keep_last = how.keep_last,
                                  .state = std::move(contents.state),
                                  .extra_files = how.extra_files,
                                  .damaged = damaged_};
  std::unique_ptr<checkpoint::SaveTurn> turn;
  together(common_.group, common_.device(), [&] {
    checkpoint::check_tag(tag);
    if (common_.group.rank() == 0) turn = take_turn(folder);
  });
  const Saved saved{tag, folder / tag, plan.bytes()};
  if (how.asynchronous || common_.options.checkpoint.asynchronous) {
    auto saving =
        std::make_unique<Saving>(Saving{.turn = std::move(turn), .saved = saved, .began = began});
    saving->span = {
        common_.group.recorder().get(),
        {.name = "save in the background", .kind = profile::Kind::io, .bytes = saved.bytes}};
    saving->save =
        start_background(std::move(request), std::move(plan), std::move(contents.pieces));
    saving->blocked = std::chrono::steady_clock::now() - began;
    saving_ = std::move(saving);
  } else {
    save_now(request, plan, contents.pieces);
    common_.log.say(LogLevel::info, fmt::format("saved {} ({} in {:.2f} s)", saved.folder.string(),
                                                format_bytes(saved.bytes), seconds_since(began)));
  }
  return saved;
}

checkpoint::TakeMemory Saver::snapshot_memory() {
  if (snapshot_memory_ == nullptr) {
    snapshot_memory_ = store::Pool::of_host(
        snapshot_ledger_,
        "allow less memory for copies (snapshot_bytes), or save without asynchronous",
        /*pinned=*/!common_.device().is_cpu());
  }
  return [pool = snapshot_memory_.get(),
          device = common_.device()](std::int64_t bytes) -> std::shared_ptr<void> {
    const c10::OptionalDeviceGuard on_our_device(device);  // memory is page-locked for it
    auto held = std::make_shared<c10::DataPtr>(pool->take(bytes, store::MemoryKind::optimizer));
    return {held, held->get()};
  };
}

void Saver::training_began() {
  if (!common_.options.checkpoint.asynchronous || snapshot_memory_ != nullptr) return;
  memory_ahead_ = std::make_unique<checkpoint::MemoryAhead>(
      checkpoint::device_copy_sizes(state_pieces(common_),
                                    common_.options.checkpoint.snapshot_bytes),
      snapshot_memory());
}

std::unique_ptr<checkpoint::BackgroundSave> Saver::start_background(
    checkpoint::SaveRequest request, checkpoint::FilePlan plan,
    std::vector<checkpoint::Piece> pieces) {
  const std::string partial =
      text_from(common_.group, common_.device(), checkpoint::partial_path(request).string(), 0);
  memory_ahead_.reset();
  return std::make_unique<checkpoint::BackgroundSave>(
      checkpoint::BackgroundJob{.request = std::move(request),
                                .plan = std::move(plan),
                                .partial = partial,
                                .pieces = std::move(pieces),
                                .rank = common_.group.rank(),
                                .ranks = common_.group.size(),
                                .buffers = buffer_options(),
                                .copy_bytes = common_.options.checkpoint.snapshot_bytes,
                                .take_memory = snapshot_memory(),
                                .timeout = common_.options.comm.timeout});
}

void Saver::before_change() {
  if (saving_) saving_->save->release_memory();
}

// All ranks learn together that a save has ended, so that all throw or all go on.
void Saver::look_after() {
  if (!saving_) return;
  const bool ended = saving_->save->ended();
  try {
    together(common_.group, common_.device(), [&] {
      if (ended) saving_->save->wait();
    });
  } catch (const Error&) {
    saving_.reset();
    throw;
  }
  if (on_all(common_.group, common_.device(), ended)) tell_saved();
}

void Saver::finish() {
  while (saving_) {
    const auto began = std::chrono::steady_clock::now();
    saving_->save->ended(kLookPause);
    saving_->blocked += std::chrono::steady_clock::now() - began;
    look_after();
  }
}

void Saver::tell_saved() {
  const std::unique_ptr<Saving> saving = std::move(saving_);
  const checkpoint::BackgroundSave::Stats stats = saving->save->stats();
  const std::chrono::duration<double> blocked = saving->blocked + stats.blocked;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - saving->began;
  common_.log.say(
      LogLevel::info,
      fmt::format("saved {} ({} in {:.2f} s, of which training stood still for {:.3f} s; {} "
                  "copied)",
                  saving->saved.folder.string(), format_bytes(saving->saved.bytes), took.count(),
                  blocked.count(), format_bytes(stats.copied_bytes)));
}

}  // namespace capstan::engine
