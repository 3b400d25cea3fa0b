#include "capstan/pipeline/partition.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/layout/partition.h"
#include "capstan/pipeline/profile_cuts.h"

namespace capstan::pipeline {
namespace {

constexpr const char* kWhere = "pipeline partition method";

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::vector<double> matches(std::span<const Layer> layers, const std::string& pattern) {
  std::vector<double> weights;
  try {
    const std::regex expression(pattern, std::regex::ECMAScript | std::regex::icase);
    for (const Layer& layer : layers) {
      weights.push_back(std::regex_search(layer.type, expression) ? 1 : 0);
    }
  } catch (const std::regex_error& error) {
    throw ConfigError({.what = "\"" + pattern + "\" is not a regular expression: " + error.what(),
                       .where = kWhere,
                       .fix = "write the type of the layers to count, for example type:block"});
  }
  return weights;
}

std::vector<std::int64_t> cut_by_type(std::span<const Layer> layers, const std::string& pattern,
                                      int parts) {
  const std::vector<double> weights = matches(layers, pattern);
  if (std::find(weights.begin(), weights.end(), 1.0) != weights.end()) {
    return layout::balanced_cuts(weights, parts);
  }
  std::vector<std::string> types;
  for (const Layer& layer : layers) {
    if (std::find(types.begin(), types.end(), layer.type) == types.end()) {
      types.push_back(layer.type);
    }
  }
  std::string known;
  for (const std::string& type : types) known += (known.empty() ? "" : ", ") + type;
  throw ConfigError({.what = "no layer has a type that matches \"" + pattern + "\"",
                     .where = kWhere,
                     .fix = "use a part of one of these types: " + known});
}

}  // namespace

Method method_named(std::string_view text) {
  static constexpr std::array kPlain = {std::pair("uniform", Method::Kind::uniform),
                                        std::pair("parameters", Method::Kind::parameters),
                                        std::pair("profile", Method::Kind::profile)};
  const std::string name = lower(text);
  for (const auto& [known, kind] : kPlain) {
    if (name == known) return {.kind = kind};
  }
  constexpr std::string_view kType = "type:";
  if (name.starts_with(kType) && name.size() > kType.size()) {
    return {.kind = Method::Kind::type, .pattern = std::string(text.substr(kType.size()))};
  }
  const std::vector<std::string> names = {"uniform", "parameters", "profile", "type:REGEX"};
  const std::string near = nearest_name(name, names);
  throw ConfigError({.what = "there is no partition method \"" + std::string(text) + "\"",
                     .where = kWhere,
                     .fix = near.empty() ? "choose one of: uniform, parameters, profile, type:REGEX"
                                         : "did you mean \"" + near + "\"?"});
}

std::vector<std::int64_t> cut_layers(const Method& method, std::span<const Layer> layers,
                                     const Target& target) {
  const int parts = target.shape.parts();
  std::vector<double> params;
  switch (method.kind) {
    case Method::Kind::uniform:
      return layout::even_cuts(std::ssize(layers), parts);
    case Method::Kind::parameters:
      for (const Layer& layer : layers) params.push_back(static_cast<double>(layer.params));
      return layout::balanced_cuts(params, parts);
    case Method::Kind::type:
      return cut_by_type(layers, method.pattern, parts);
    case Method::Kind::profile:
      return profile_cuts(layers, target);
  }
  return {};
}

std::vector<std::int64_t> cut_blocks(std::span<const double> costs, int parts) {
  const std::int64_t blocks = std::ssize(costs) - 2;
  if (parts < 1 || blocks < parts) {
    throw ConfigError({.what = "a model of " + counted(std::max<std::int64_t>(blocks, 0), "block") +
                               " has too few for " + counted(parts, "stage"),
                       .where = "stages of a pipeline",
                       .fix = "give fewer stages, or a model with more blocks"});
  }
  const std::vector<std::int64_t> cuts = layout::balanced_cuts(costs, parts);
  // Layer 0 are the embeddings, the last one is the output.
  std::vector<std::int64_t> begins = {0};
  for (int part = 1; part < parts; ++part) {
    begins.push_back(std::clamp(cuts[static_cast<std::size_t>(part)] - 1, begins.back() + 1,
                                blocks - (parts - part)));
  }
  begins.push_back(blocks);
  return begins;
}

}  // namespace capstan::pipeline
