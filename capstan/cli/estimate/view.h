// Plans as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "capstan/json/value.h"
#include "capstan/tune/plan.h"
#include "capstan/tune/table.h"

namespace capstan::cli::estimate {

capstan::tune::MemoryRow row_of(const capstan::tune::Candidate& candidate);
json::Value to_json(const capstan::tune::Candidate& candidate);

std::string ladder_table(const std::vector<capstan::tune::Step>& ladder);
std::string ranking_table(const std::vector<capstan::tune::Candidate>& ranking, std::size_t most);
// "21.3 ms"
std::string to_text(capstan::tune::Seconds time);

}  // namespace capstan::cli::estimate
