#include "capstan/config/foreign_file.h"

#include <string>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::config {
namespace {

// The value of `key` wherever the reader of JSON has put a line of YAML: as a member, or, where it
// is the first of its block, as the text of the key before it.
std::string line_of_yaml(const json::Object& members, const std::string& key) {
  for (const json::Member& member : members) {
    const std::string* text = member.value.text();
    if (text == nullptr) continue;
    if (member.key == key) return std::string(trim(*text));
    const std::string start = key + ":";
    if (text->starts_with(start)) return std::string(trim(text->substr(start.size())));
  }
  return "";
}

}  // namespace

std::optional<ErrorInfo> recognise_foreign_file(const json::Document& document) {
  const json::Value& root = document.root;
  const bool accelerate =
      root.find("distributed_type") != nullptr &&
      (root.find("compute_environment") != nullptr || root.find("deepspeed_config") != nullptr);
  if (!accelerate) return {};
  const std::string file = line_of_yaml(*root.object(), "deepspeed_config_file");
  const std::string run =
      fmt::format("start the script with `accelerate launch --config_file {}`", document.source);
  return ErrorInfo{
      .what =
          "this is an Accelerate file (as written by `accelerate config`), not a DeepSpeed "
          "configuration",
      .where = document.source,
      .fix = file.empty()
                 ? fmt::format("{}; Accelerate makes the DeepSpeed configuration from its section "
                               "deepspeed_config",
                               run)
                 : fmt::format("{}; the DeepSpeed configuration is the file that its key "
                               "deepspeed_config_file names: give {} instead",
                               run, file)};
}

}  // namespace capstan::config
