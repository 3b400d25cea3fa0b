// Saves an engine's state as checkpoints, at once or beside its training.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "capstan/checkpoint/background_save.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/folder_lock.h"
#include "capstan/checkpoint/memory_ahead.h"
#include "capstan/engine/common.h"
#include "capstan/store/ledger.h"
#include "capstan/store/pool.h"

namespace capstan::engine {

// Owns:    a save in the background, its memory, and the lock of the folder last saved to.
// Threads: one caller at a time; a save in the background has threads of its own.
// Ranks:   save(), finish() and look_after() are collective: an error on one rank is thrown by all.
class Saver {
 public:
  // What `common` names must outlive this.
  explicit Saver(const Common& common);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  Saved save(const std::filesystem::path& folder, const SaveOptions& how);
  // Waits for a save in the background and throws what went wrong with it.
  void finish();
  // Throws what went wrong with a save in the background that has ended; waits for none.
  void look_after();
  // Returns when a save in the background needs the memory of parameters and states no more.
  void before_change();
  // All states are there: memory for saves in the background can be taken before the first.
  void training_began();
  // A load found it so: the next save into its folder sets it aside. On rank 0.
  void add_damaged(checkpoint::Found found) { damaged_.push_back(std::move(found)); }

 private:
  void check_tags(const std::string& tag);
  std::unique_ptr<checkpoint::SaveTurn> take_turn(const std::filesystem::path& folder);
  checkpoint::BufferOptions buffer_options() const;
  void save_now(const checkpoint::SaveRequest& request, const checkpoint::FilePlan& plan,
                const std::vector<checkpoint::Piece>& pieces);
  std::unique_ptr<checkpoint::BackgroundSave> start_background(
      checkpoint::SaveRequest request, checkpoint::FilePlan plan,
      std::vector<checkpoint::Piece> pieces);
  checkpoint::TakeMemory snapshot_memory();
  void tell_saved();

  // A save in the background, as the log tells of it.
  struct Saving {
    std::unique_ptr<checkpoint::SaveTurn> turn;  // on rank 0
    Saved saved;
    std::chrono::steady_clock::time_point began;
    std::chrono::nanoseconds blocked{0};  // training, apart from what the save counts itself
    profile::Span span;                   // until its end is seen
    std::unique_ptr<checkpoint::BackgroundSave> save;
  };

  Common common_;
  std::vector<checkpoint::Found> damaged_;
  std::unique_ptr<checkpoint::FolderLock> folder_lock_;  // on rank 0
  store::Ledger snapshot_ledger_;
  std::unique_ptr<store::Pool> snapshot_memory_;  // kept from save to save
  std::unique_ptr<checkpoint::MemoryAhead> memory_ahead_;
  std::unique_ptr<Saving> saving_;  // last: reads what stands above
};

}  // namespace capstan::engine
