// The monitor that writes a CSV file per figure, laid out as DeepSpeed's: Train/Samples/lr becomes
// Train_Samples_lr.csv with the header "step,lr" and rows "samples,value".
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "capstan/monitor/event.h"

namespace capstan::monitor {

// A file that was there already goes on below its last row, without a second header.
class CsvFiles final : public Sink {
 public:
  // Makes the folder; throws IoError where that fails.
  explicit CsvFiles(std::filesystem::path folder);
  void write(const std::vector<Event>& events) override;

  static std::string file_name(std::string_view event);

 private:
  std::ofstream& file_of(const std::string& event);

  std::filesystem::path folder_;
  std::map<std::string, std::ofstream> files_;  // by event
};

}  // namespace capstan::monitor
