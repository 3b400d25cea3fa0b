// One trial: a real, short job with one candidate's configuration, and what became of it.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capstan/json/value.h"
#include "capstan/launch/options.h"
#include "capstan/launch/run.h"
#include "capstan/launch/signal_watch.h"
#include "capstan/tune/search.h"

namespace capstan::tune {

// The file that an engine writes at the end of the measured steps (engine/trial_record.h).
struct Record {
  int stage = 0;
  MicroBatch micro;
  double latency = 0;
  double throughput = 0;
  std::int64_t memory_bytes = 0;
};

// Nothing where the file is not there, or is not one.
std::optional<Record> read_record(const std::filesystem::path& file);

struct TrialJob {
  launch::Options job;           // what is started, and where
  std::filesystem::path record;  // what its engine writes
  std::filesystem::path folder;  // for stdout.log and stderr.log
  std::chrono::milliseconds limit{0};
};

// Runs it to the end of its measured steps, or of its time. Whatever happens in it is an outcome;
// when this returns, none of its processes is left. Throws ConfigError and IoError where it cannot
// be started. A signal that stops it is still to be taken from `signals` then.
// Threads: the program's only one.
Outcome run_trial(const TrialJob& trial, launch::SignalWatch& signals);

// Whether this line of an error says that memory ran out.
bool tells_out_of_memory(std::string_view line);

// Set where the job did not train what the candidate says: a flag of the script had its own idea.
std::string difference(const Record& record, int stage, const MicroBatch& micro);

// For a file, so that a trial that has ended is not run again.
json::Value to_json(const Outcome& outcome);
std::optional<Outcome> outcome_from(const json::Value& value);

std::string_view to_string(End end);

}  // namespace capstan::tune
