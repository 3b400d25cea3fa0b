#include "capstan/monitor/csv_files.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/monitor/written_file.h"

namespace capstan::monitor {

CsvFiles::CsvFiles(std::filesystem::path folder) : folder_(std::move(folder)) {
  make_folder(folder_);
}

std::string CsvFiles::file_name(std::string_view event) {
  std::string name(event);
  for (char& c : name) {
    if (c == '/' || c == ' ') c = '_';
  }
  return name + ".csv";
}

std::ofstream& CsvFiles::file_of(const std::string& event) {
  const auto [at, is_new] = files_.try_emplace(event);
  if (!is_new) return at->second;
  const std::filesystem::path path = folder_ / file_name(event);
  std::error_code missing;
  const bool begun = std::filesystem::file_size(path, missing) > 0 && !missing;
  at->second.open(path, std::ios::app);
  if (!begun) at->second << "step," << event.substr(event.rfind('/') + 1) << '\n';
  return at->second;
}

void CsvFiles::write(const std::vector<Event>& events) {
  for (const Event& event : events) {
    std::ofstream& file = file_of(event.name);
    file << fmt::format("{},{}\n", event.samples, event.value) << std::flush;
    check_written(file, folder_ / file_name(event.name));
  }
}

}  // namespace capstan::monitor
