// From a configuration to what can be tried with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/tune/search_space.h"

namespace capstan::tune {

// A configuration whose lists of alternatives were taken out.
struct Alternatives {
  json::Document config;             // with the first item of each list
  std::vector<int> stages;           // from a list, or "all"; empty: there was neither
  std::vector<std::int64_t> micros;  // likewise
  std::vector<Axis> others;          // one per further list
};

// Throws ConfigError for a list of what cannot be tried by itself.
Alternatives take_alternatives(const json::Document& given);

struct SpaceFacts {
  int ranks = 1;
  bool on_gpus = false;
  bool own_models = false;  // of capstan train: their activations can be recomputed
};

// `resolved`: what Alternatives::config says for those ranks. Throws ConfigError where no batch
// size is possible.
Space make_space(const Alternatives& alternatives, const config::Resolved& resolved,
                 const SpaceFacts& facts);

}  // namespace capstan::tune
