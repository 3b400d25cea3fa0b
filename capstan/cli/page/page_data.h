// What the run page draws, from the metrics files of its runs.
#pragma once

#include <string>
#include <vector>

#include "capstan/monitor/run_file.h"

namespace capstan::cli::page {

// More points than a chart has columns show nothing more.
inline constexpr std::size_t kMostPoints = 2000;

// The steps that are drawn: all where they are few, else of equally many neighbours the first and
// the one with the largest loss, so that no spike is lost; always the last one.
std::vector<std::int64_t> drawn_steps(const monitor::RunFile& file);

// {"live":…,"written":…,"runs":[{"name","run","damage","last","columns":{…},"validation":{…},
// "skipped":[…]},…]}, without "<", so that it can stand in a page.
std::string page_data(const std::vector<monitor::RunFile>& files, bool live);

}  // namespace capstan::cli::page
