// The run page: one HTML file that needs nothing else. While a run goes on, the figures come from a
// second file beside it, a script that the page loads again and again: from a file:// page no
// browser fetches anything else.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "capstan/monitor/run_file.h"

namespace capstan::cli::page {

// The page in a folder.
std::filesystem::path page_in(const std::filesystem::path& folder);

// Threads: one. Errors: IoError where a file cannot be read or written.
class RunPage {
 public:
  RunPage(std::filesystem::path page, const std::vector<std::filesystem::path>& metrics);

  // The page follows what was written to the metrics since. Costs nothing where that was just done.
  void refresh();
  // One file from here on. Throws ConfigError where a file holds no metrics.
  void finish();

  const std::filesystem::path& path() const { return page_; }
  // What is wrong with the metrics files, a line each.
  std::vector<std::string> damage() const;

 private:
  std::filesystem::path data_path() const;
  void write_page(bool live) const;

  std::filesystem::path page_;
  std::vector<monitor::RunFile> files_;
  bool begun_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace capstan::cli::page
