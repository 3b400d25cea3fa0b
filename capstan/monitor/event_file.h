// The monitor that TensorBoard reads: a new event file in a folder, for each run.
//
//   record   length (8 bytes) | its checksum (4) | message | its checksum (4), little-endian
//   message  a protobuf Event: 1 time (double), 2 step (varint), 3 version (text, first message
//            only), 5 summary { 1 value { 1 tag (text), 2 simple_value (float) } }
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "capstan/monitor/event.h"

namespace capstan::monitor {

class EventFile final : public Sink {
 public:
  // Makes folder and file; throws IoError where that fails.
  explicit EventFile(const std::filesystem::path& folder);
  void write(const std::vector<Event>& events) override;

  const std::filesystem::path& path() const { return path_; }

 private:
  void add_record(std::string_view message);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace capstan::monitor
