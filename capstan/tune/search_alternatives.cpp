#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/json/writer.h"
#include "capstan/tune/search_settings.h"

namespace capstan::tune {
namespace {

constexpr const char* kStage = "zero_optimization.stage";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The names of files take letters, digits and a few signs.
std::string as_tag(const std::string& text) {
  std::string tag;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_')
      tag += c;
  }
  return tag;
}

// Whether a list is one value of this key.
bool takes_lists(const config::Key& key) {
  switch (key.type) {
    case config::Type::texts:
    case config::Type::numbers:
    case config::Type::number_or_list:
    case config::Type::any:
    case config::Type::passed:
      return true;
    default:
      return false;
  }
}

class Taker {
 public:
  explicit Taker(const json::Document& given) : taken_{.config = given} {}

  Alternatives run() {
    walk(taken_.config.root, "", "");
    return std::move(taken_);
  }

 private:
  // `spelt`: the path as the file has it; `path`: as the schema has it.
  void walk(json::Value& section, const std::string& path, const std::string& spelt) {
    if (section.object() == nullptr) return;
    const std::string type = type_beside(path);
    for (json::Member& member : *section.object()) {
      const std::string name = config::schema().section_name(path, member.key);
      const std::string below = config::join_path(path, name);
      const std::string here = config::join_path(spelt, member.key);
      if (member.value.object() != nullptr && config::schema().has(below)) {
        walk(member.value, below, here);
      } else if (const config::Key* key = key_of(path, type, member.key)) {
        take(*key, config::join_path(path, key->name), here, member.value);
      }
    }
  }

  std::string type_beside(const std::string& path) const {
    if (!config::schema().depends_on_type(path)) return "";
    const std::string above = path.substr(0, path.rfind('.'));
    const json::Value* type = find_at(taken_.config.root, above + ".type");
    return type != nullptr && type->text() != nullptr ? lower(*type->text()) : "";
  }

  static const config::Key* key_of(const std::string& path, const std::string& type,
                                   const std::string& name) {
    for (const config::Section* section : config::schema().at(path, type)) {
      for (const config::Key& key : section->keys) {
        const auto is = [&](const std::string& other) { return other == name; };
        if (key.name == name || std::any_of(key.aliases.begin(), key.aliases.end(), is))
          return &key;
      }
    }
    return nullptr;
  }

  void take(const config::Key& key, const std::string& path, const std::string& spelt,
            json::Value& value) {
    if (path == kStage && value.text() != nullptr && *value.text() == "all") {
      taken_.stages = {0, 1, 2, 3};
      value = json::Value(0);
      return;
    }
    if (value.array() == nullptr || value.array()->empty() || takes_lists(key)) return;
    const json::Array items = *value.array();
    if (path == kStage || path == kMicro) {
      for (const json::Value& item : items) take_number(path, item);
    } else if (path == "train_batch_size" || path == "gradient_accumulation_steps" ||
               path.starts_with("autotuning.")) {
      throw ConfigError({.what = fmt::format("{} is a list", path),
                         .where = taken_.config.source,
                         .fix = fmt::format("give one number there; {} can be a list", kMicro)});
    } else {
      taken_.others.push_back(axis_of(key.name, spelt, items));
    }
    json::Value first = items.front();
    first.place = value.place;
    value = std::move(first);
  }

  void take_number(const std::string& path, const json::Value& item) {
    const std::int64_t* number = item.integer();
    const bool stage = path == kStage;
    if (number == nullptr || *number < (stage ? 0 : 1) || (stage && *number > 3)) {
      throw ConfigError({.what = fmt::format("{} in the list of {}", json::write(item), path),
                         .where = taken_.config.source,
                         .fix = stage ? "give stages from 0 to 3, or \"all\""
                                      : "give whole numbers of at least 1"});
    }
    if (stage) {
      taken_.stages.push_back(static_cast<int>(*number));
    } else {
      taken_.micros.push_back(*number);
    }
  }

  static Axis axis_of(const std::string& name, const std::string& spelt, const json::Array& items) {
    Axis axis{.name = name};
    for (const json::Value& item : items) {
      const std::string text = json::write(item, {.indent = 0});
      axis.settings.push_back({.label = fmt::format("{} {}", name, text),
                               .tag = as_tag(name + text),
                               .edits = {{spelt, item}}});
    }
    return axis;
  }

  Alternatives taken_;
};

}  // namespace

Alternatives take_alternatives(const json::Document& given) { return Taker(given).run(); }

}  // namespace capstan::tune
