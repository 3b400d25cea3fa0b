// Reads a metrics file, also while it grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace capstan::monitor {

// Threads: one.
class RunFile {
 public:
  using Row = std::vector<double>;  // by column; NaN: the line has no such number

  explicit RunFile(std::filesystem::path path) : path_(std::move(path)) {}

  // What was added since the last call, in whole lines; `ended`: nobody writes any more, so that
  // what follows the last of them counts too. Returns whether there was anything. Throws IoError
  // where the file cannot be read.
  bool read_more(bool ended);
  // After reading: throws ConfigError where the file is empty, or no line of it is one of a run.
  void check() const;

  const std::filesystem::path& path() const { return path_; }
  // Names of all numbers in the lines; those in an object of the line as "memory_bytes.host".
  const std::vector<std::string>& columns() const { return columns_; }
  // By step. Where a run went back to a checkpoint, what came after that has gone.
  const std::map<std::int64_t, Row>& steps() const { return steps_; }
  const std::map<std::int64_t, double>& validation_losses() const { return validation_; }
  // The steps of one column that are finite; empty where there is none.
  std::map<std::int64_t, double> column(const std::string& name) const;
  // What the last run in the file says of itself, as a JSON object; empty where it says nothing.
  const std::string& run() const { return run_; }
  // "2 lines are not complete, the first is line 17"; empty where all are.
  std::string damage() const;

 private:
  void take_line(const std::string& text);
  std::size_t column_at(const std::string& name);
  void forget_after(std::int64_t step);

  std::filesystem::path path_;
  std::int64_t offset_ = 0;  // of the first byte that was not taken
  std::int64_t lines_ = 0;
  std::int64_t damaged_ = 0;
  std::int64_t first_damaged_ = 0;
  std::string run_;
  std::vector<std::string> columns_;
  std::map<std::string, std::size_t> index_;  // of columns
  std::map<std::int64_t, Row> steps_;
  std::map<std::int64_t, double> validation_;
};

}  // namespace capstan::monitor
