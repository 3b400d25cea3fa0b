// Whether a value that is understood may be given at all: to this caller, in this version.
#pragma once

#include <string>

#include "capstan/config/context.h"
#include "capstan/config/findings.h"
#include "capstan/config/schema.h"

namespace capstan::config {

// Why a feature is missing: "ZeRO++ (...): not available yet", "...: only in the package
// deepspeed".
std::string not_available(Feature feature, std::optional<Door> door);

// Puts refusals where `context` wants them: problems, or warnings for those who only read.
class Refusals {
 public:
  Refusals(const Context& context, Findings& findings) : context_(context), findings_(findings) {}

  // A value other than the key's default; `full` is the key's path.
  void check(const Section& section, const Key& key, const std::string& full,
             const json::Value& value);

  // A section that stands in the file. False: it is off or was refused; its keys count for nothing.
  bool check_section(const Section& section, const std::string& path, const json::Member& member);

 private:
  void refuse(std::string what, const std::string& path, json::Place place, std::string fix);

  const Context& context_;
  Findings& findings_;
};

}  // namespace capstan::config
