#include "capstan/config/refusal.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/config/convert.h"

namespace capstan::config {
namespace {

// The flag that turns a section on: given, or its default.
bool gate_is_on(const Section& section, const json::Value* given) {
  for (const Key& key : section.keys) {
    if (key.name != section.gate) continue;
    const bool unsaid = given == nullptr || given->is_null() || *given == json::Value("auto");
    const json::Value value = unsaid ? key.standard : convert(key, *given).value;
    return value.boolean() != nullptr && *value.boolean();
  }
  return false;
}

}  // namespace

std::string not_available(Feature feature, std::optional<Door> door) {
  const std::optional<Door> only = only_door(feature);
  if (door && only && available(feature)) {
    return fmt::format("{}: only in {}", name(feature), name(*only));
  }
  return fmt::format("{}: not available yet", name(feature));
}

void Refusals::refuse(std::string what, const std::string& path, json::Place place,
                      std::string fix) {
  if (context_.reads_only) {
    findings_.warning(std::move(what), path, place, std::move(fix));
  } else {
    findings_.problem(std::move(what), path, place, std::move(fix));
  }
}

void Refusals::check(const Section& section, const Key& key, const std::string& full,
                     const json::Value& value) {
  const std::string fix = fmt::format("remove the key, or set it to {}", show(key.standard));
  const std::optional<Feature> feature = key.feature ? key.feature : section.feature;
  if (standing_of(section, key) == Standing::refused) {
    refuse(fmt::format("{} is refused: {}", show(value), standing_reason_of(section, key)), full,
           value.place, fix);
  } else if (feature && !key.idle && !available(*feature, context_.door)) {
    refuse(
        fmt::format("{} is refused here: {}", show(value), not_available(*feature, context_.door)),
        full, value.place, fix);
  } else if (!key.acts_for(context_.door)) {
    if (key.elsewhere == Standing::refused) {
      refuse(fmt::format("{} is refused here: {}", show(value), key.elsewhere_reason), full,
             value.place, fix);
    } else {
      findings_.warning(
          fmt::format("\"{}\" has no effect here: {}", key.name, key.elsewhere_reason), full,
          value.place, "remove the key");
    }
  }
  for (const ValueNeed& need : key.value_needs) {
    if (!(value == json::Value(need.value)) || available(need.feature, context_.door)) continue;
    refuse(fmt::format("\"{}\" is refused: {}", need.value,
                       not_available(need.feature, context_.door)),
           full, value.place,
           fmt::format("use \"{}\"", fmt::join(key.open_choices(context_.door), "\" or \"")));
  }
}

bool Refusals::check_section(const Section& section, const std::string& path,
                             const json::Member& member) {
  if (!section.feature || available(*section.feature, context_.door)) return true;
  if (section.passive || !section.when.empty()) return false;  // the type was refused
  const std::string what = not_available(*section.feature, context_.door);
  const bool empty = member.value.object()->empty();
  if (section.presence == Presence::on ||
      (section.presence == Presence::on_when_filled && !empty)) {
    refuse(what, path, member.place, "remove the section");
    return false;
  }
  if (section.gate.empty() || empty) return true;
  const json::Value* gate = member.value.find(section.gate);
  if (gate_is_on(section, gate)) {
    refuse(what, path, gate != nullptr ? gate->place : member.place,
           fmt::format("remove the section, or set \"{}\": false", section.gate));
  }
  return false;
}

}  // namespace capstan::config
