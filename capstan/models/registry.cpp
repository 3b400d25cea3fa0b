#include "capstan/models/registry.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"
#include "capstan/models/gpt_blueprint.h"

namespace capstan::models {
namespace {

struct Kind {
  std::string type;  // as config.json names it
  std::string title;
  std::vector<std::string> names;
  std::function<std::shared_ptr<const Blueprint>(const std::string&)> by_name;
  std::function<std::shared_ptr<const Blueprint>(const ConfigFile&)> read;
};

std::vector<Kind> kinds() {
  return {{.type = "gpt2",
           .title = "GPT-2",
           .names = gpt_names(),
           .by_name =
               [](const std::string& name) {
                 return std::make_shared<GptBlueprint>(gpt_by_name(name));
               },
           .read = [](const ConfigFile& file) { return std::make_shared<GptBlueprint>(file); }}};
}

// "a", "a or b", "a, b or c"
template <typename Text>
std::string one_of(const std::vector<Kind>& all, const Text& text_of) {
  std::string joined;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool last = i + 1 == all.size();
    if (i > 0) joined += last ? " or " : ", ";
    joined += text_of(all[i]);
  }
  return joined;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.insert(names.end(), kind.names.begin(), kind.names.end());
  return names;
}

std::shared_ptr<const Blueprint> blueprint_by_name(const std::string& name) {
  for (const Kind& kind : kinds()) {
    if (std::find(kind.names.begin(), kind.names.end(), name) != kind.names.end()) {
      return kind.by_name(name);
    }
  }
  throw no_such_model(name, model_names());
}

std::shared_ptr<const Blueprint> read_blueprint(const ConfigFile& config) {
  const json::Value* const type = config.find("model_type");
  const std::vector<Kind> all = kinds();
  for (const Kind& kind : all) {
    if (type != nullptr && type->text() != nullptr && *type->text() == kind.type) {
      return kind.read(config);
    }
  }
  const auto with_type = [](const Kind& kind) {
    return fmt::format("{} (\"model_type\": \"{}\")", kind.title, kind.type);
  };
  config.refuse("this is not a " + one_of(all, with_type),
                "other models run through Python: capstan.initialize(model, config), "
                "docs/inference.md");
}

std::string model_titles() {
  return one_of(kinds(), [](const Kind& kind) { return kind.title; });
}

ConfigError no_such_model(const std::string& name, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(name, names);
  const std::string hint = nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest);
  return ConfigError({.what = fmt::format("there is no model called \"{}\"", name),
                      .where = "the model's name",
                      .fix = fmt::format("{}Known: {}", hint, fmt::join(names, ", "))});
}

}  // namespace capstan::models
