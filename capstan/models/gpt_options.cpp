#include "capstan/models/gpt_options.h"

#include <array>

#include "capstan/base/error.h"
#include "capstan/models/blueprint.h"

namespace capstan::models {
namespace {

struct NamedSize {
  const char* name;
  std::int64_t width;
  std::int64_t layers;
  std::int64_t heads;
  std::int64_t context;
};

constexpr std::array<NamedSize, 7> kGptSizes = {{{"gpt2-tiny", 64, 2, 2, 128},
                                                 {"gpt2-nano", 128, 2, 4, 128},
                                                 {"gpt2-mini", 128, 4, 4, 128},
                                                 {"gpt2", 768, 12, 12, 1024},
                                                 {"gpt2-medium", 1024, 24, 16, 1024},
                                                 {"gpt2-large", 1280, 36, 20, 1024},
                                                 {"gpt2-xl", 1600, 48, 25, 1024}}};

}  // namespace

std::vector<std::string> gpt_names() {
  std::vector<std::string> names;
  names.reserve(kGptSizes.size());
  for (const NamedSize& size : kGptSizes) names.emplace_back(size.name);
  return names;
}

GptOptions gpt_by_name(const std::string& name) {
  for (const NamedSize& size : kGptSizes) {
    if (name != size.name) continue;
    GptOptions options;
    options.width = size.width;
    options.layers = size.layers;
    options.heads = size.heads;
    options.context = size.context;
    return options;
  }
  throw no_such_model(name, gpt_names());
}

void check(const GptOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& fix) {
    throw ConfigError({.what = what, .where = "the model's size", .fix = fix});
  };
  if (options.vocab <= 0 || options.context <= 0 || options.width <= 0 || options.layers <= 0 ||
      options.heads <= 0) {
    refuse("a size is zero or negative", "give positive vocab, context, width, layers and heads");
  }
  if (options.width % options.heads != 0) {
    refuse("width " + std::to_string(options.width) + " is not a multiple of " +
               std::to_string(options.heads) + " heads",
           "choose a width that is a multiple of heads");
  }
  if (options.begin_block() < 0 || options.begin_block() > options.end_block() ||
      options.end_block() > options.layers) {
    refuse("a stage has the blocks " + std::to_string(options.begin_block()) + " to " +
               std::to_string(options.end_block()) + " of " + std::to_string(options.layers),
           "give each stage blocks that follow each other");
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    refuse("dropout is " + std::to_string(options.dropout), "choose 0 or more, less than 1");
  }
}

std::int64_t parameter_count(const GptOptions& options) {
  const std::int64_t w = options.width;
  const std::int64_t attention = w * 3 * w + 3 * w + w * w + w;
  const std::int64_t mlp = w * 4 * w + 4 * w + 4 * w * w + w;
  const std::int64_t norms = 4 * w;
  return (options.vocab + options.context) * w + options.layers * (attention + mlp + norms) + 2 * w;
}

double flops_per_token(const GptOptions& options, std::int64_t tokens) {
  return 6.0 * static_cast<double>(parameter_count(options)) +
         12.0 * static_cast<double>(options.layers) * static_cast<double>(options.width) *
             static_cast<double>(tokens);
}

}  // namespace capstan::models
