// How long units computed, from spans that lie inside of each other.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "capstan/profile/timeline.h"

namespace capstan::profile {

// By unit and what it did ("forward", "backward", "recompute"), in microseconds. An instant counts
// for the span that began last, and for nobody while something is waited for.
std::map<std::pair<std::string, std::string>, double> unit_times(
    const std::vector<TimelineSpan>& spans);

}  // namespace capstan::profile
