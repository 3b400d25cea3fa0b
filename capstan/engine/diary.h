// A rank's notes about its run, kept in a file while it trains: see profile/rank_notes.h.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "capstan/comm/mesh_groups.h"
#include "capstan/engine/run_log.h"
#include "capstan/profile/rank_notes.h"
#include "capstan/profile/recorder.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

// Without a folder it does nothing and costs nothing. What cannot be written is given up silently:
// no run dies of its notes.
// Threads: one caller at a time.
class Diary {
 public:
  // `mesh` must outlive this.
  Diary(std::filesystem::path folder, comm::MeshGroups& mesh);
  // Writes for the last time.
  ~Diary();
  Diary(const Diary&) = delete;
  Diary& operator=(const Diary&) = delete;

  bool is_open() const { return reader_.has_value(); }
  // After an optimizer step, applied or skipped. `model` must outlive this.
  void step_ended(const Progress& progress, shard::ShardedModel& model, const void* phases);
  void failed(std::string_view error);
  // Something was not finite: "the output of block3".
  void saw_non_finite(std::int64_t step, const std::string& what);

 private:
  static void attempt(const std::function<void()>& body) noexcept;
  void note_step(const Progress& progress, shard::ShardedModel& model);
  void read_times();
  void take_fingerprint(shard::ShardedModel& model);
  void write();

  const std::filesystem::path folder_;
  comm::MeshGroups& mesh_;
  std::optional<profile::Reader> reader_;
  profile::RankNotes notes_;
  std::map<std::pair<std::string, std::string>, profile::OpTime> times_;  // by kind and name
  const void* phases_ = nullptr;  // whose phases are ours: engines may share a recorder
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point written_;
};

}  // namespace capstan::engine
