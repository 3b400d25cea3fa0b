#include "capstan/checkpoint/part.h"

#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_bytes.h"

namespace capstan::checkpoint {

std::filesystem::path part_path(const std::filesystem::path& partial, int rank) {
  return partial / fmt::format("part-{:05}", rank);
}

// One line per block, a last line "end": plain text that lives for a second.
void write_part(const std::filesystem::path& partial, int rank, const Part& part, Disk& disk) {
  std::string text;
  for (const WrittenBlock& block : part.blocks) {
    text += fmt::format("{} {} {} {} {}\n", block.file, block.tensor, block.begin, block.end,
                        checksum_text(block.sum));
  }
  if (!part.error.empty()) text += "error " + part.error + "\n";
  text += "end\n";
  io::write_durably(part_path(partial, rank), std::as_bytes(std::span(text)), disk.calls);
}

std::optional<Part> read_part(const std::filesystem::path& partial, int rank) {
  const std::filesystem::path path = part_path(partial, rank);
  std::error_code missing;
  if (!std::filesystem::exists(path, missing)) return std::nullopt;
  const std::string text = read_text_file(path);
  Part part;
  if (const auto error = text.find("error "); error != std::string::npos) {
    part.error = text.substr(error + 6, text.rfind("end\n") - error - 7);
    return part;
  }
  std::istringstream lines(text.substr(0, text.rfind("end\n")));
  WrittenBlock block;
  std::string sum;
  while (lines >> block.file >> block.tensor >> block.begin >> block.end >> sum) {
    block.sum = read_checksum(sum).value_or(0);
    part.blocks.push_back(block);
  }
  if (!text.ends_with("end\n") || !lines.eof()) {
    throw IoError({.what = fmt::format("the note of rank {} about its part cannot be read", rank),
                   .where = path.string(),
                   .fix = "save again; check the disk if it happens again"});
  }
  return part;
}

}  // namespace capstan::checkpoint
