// Plans as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "capstan/json/value.h"
#include "capstan/tune/plan.h"
#include "capstan/tune/table.h"

namespace capstan::cli::estimate {

tune::MemoryRow row_of(const tune::Candidate& candidate);
json::Value to_json(const tune::Candidate& candidate);

std::string ladder_table(const std::vector<tune::Step>& ladder);
std::string ranking_table(const std::vector<tune::Candidate>& ranking, std::size_t most);
// "21.3 ms"
std::string to_text(tune::Seconds time);

}  // namespace capstan::cli::estimate
