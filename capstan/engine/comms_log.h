// What the communication log says: collectives one by one, and added up by kind.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "capstan/comm/op.h"
#include "capstan/profile/options.h"
#include "capstan/profile/recorder.h"

namespace capstan::engine {

// Threads: one caller at a time.
class CommsLog {
 public:
  static constexpr profile::Kinds kKinds{profile::Kind::gather, profile::Kind::reduce,
                                         profile::Kind::exchange};

  explicit CommsLog(profile::CommsLoggerOptions options) : options_(std::move(options)) {}

  // Counts an operation; false: it is none, or none that was asked for.
  bool add(const profile::Record& record);
  // "all_gather of 4096 bf16 (unit 3): 8.0 KiB in 0.120 ms, 0.07 GB/s"
  std::string line(const profile::Record& record) const;
  // A row for each kind since the last call: calls, bytes, time, bandwidth.
  std::string take_table();

 private:
  struct Row {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    std::chrono::nanoseconds time{0};
  };

  profile::CommsLoggerOptions options_;
  std::array<Row, comm::kOpKinds> rows_{};
};

}  // namespace capstan::engine
