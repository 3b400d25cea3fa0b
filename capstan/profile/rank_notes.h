// What a rank leaves in a file for the day its run fails or is slow: how far it came, what it
// waited for, and what it saw. `capstan doctor` reads those of all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/json/value.h"

namespace capstan::profile {

// Of one kind of span: "wait" for "all_gather", say.
struct OpTime {
  std::string kind;
  std::string name;
  std::int64_t count = 0;
  double seconds = 0;
  double longest = 0;
  std::int64_t bytes = 0;
};

// What this rank's parameters were after a step: a number for each unit that it had whole. Ranks
// with the same part of the model have the same.
struct Fingerprint {
  std::int64_t step = 0;
  std::vector<std::pair<std::string, std::int64_t>> units;
};

struct RankNotes {
  int rank = 0;
  int world_size = 1;
  int model_part = 0;  // ranks with the same number have the same parameters
  std::string state;   // "training", "failed", "closed"
  std::string error;   // why it failed
  double began = 0;    // seconds since 1970
  double seconds = 0;  // since then
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  std::vector<OpTime> times;
  std::string operations;  // the last collectives, one per line
  std::vector<std::pair<std::string, std::int64_t>> memory_peaks;  // bytes, by what they are of
  std::vector<std::string> not_finite;    // what was, the first ones: "step 3: …"
  std::vector<Fingerprint> fingerprints;  // the latest, oldest first
};

json::Value to_json(const RankNotes& notes);
// Nothing where this is not what to_json() made; what is missing of it stays as it is by default.
std::optional<RankNotes> notes_from_json(const json::Value& value);

// "rank_3.json"
std::string notes_file_name(int rank);
// Replaces the file as a whole. False: it could not be written.
bool write_notes(const std::filesystem::path& folder, const RankNotes& notes) noexcept;

}  // namespace capstan::profile
