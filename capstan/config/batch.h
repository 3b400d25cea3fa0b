// The batch triangle: train batch = micro-batch x accumulation steps x data-parallel ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/config/table.h"

namespace capstan::config {

struct BatchNumber {
  std::optional<std::int64_t> value;  // unset: to be found
  Origin origin;
};

struct Batch {
  BatchNumber train;
  BatchNumber micro;
  BatchNumber accumulation;
  BatchNumber ranks;
  bool required = false;            // the batch must be spoken of: one of the first two
  std::vector<ErrorInfo> problems;  // empty: all four are set and the equation holds
  std::vector<ErrorInfo> warnings;
};

// Any two of the three sizes give the third; one is completed with 1 accumulation step, none with a
// micro-batch of 1, unless a size is required. Unset ranks follow from three given sizes, else they
// are 1. `source` names the file in messages. Given values are at least 1.
Batch complete_batch(Batch given, const std::string& source);

}  // namespace capstan::config
