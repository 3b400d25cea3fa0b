#include "capstan/profile/rank_notes.h"

#include <exception>
#include <fstream>
#include <system_error>

#include "capstan/json/writer.h"

namespace capstan::profile {
namespace {

using json::Array;
using json::Object;
using json::Value;

constexpr std::int64_t kFormat = 1;
constexpr const char* kFormatKey = "capstan_rank_notes";

Value to_value(const std::vector<std::pair<std::string, std::int64_t>>& numbers) {
  Value object{Object{}};
  for (const auto& [name, number] : numbers) {
    if (object.find(name) == nullptr) object.add(name, Value(number));
  }
  return object;
}

Value to_value(const OpTime& time) {
  return Value(Object{})
      .add("kind", Value(time.kind))
      .add("name", Value(time.name))
      .add("count", Value(time.count))
      .add("seconds", Value(time.seconds))
      .add("longest", Value(time.longest))
      .add("bytes", Value(time.bytes));
}

Value to_value(const Fingerprint& print) {
  return Value(Object{}).add("step", Value(print.step)).add("units", to_value(print.units));
}

template <typename Item>
Value list(const std::vector<Item>& items) {
  Array array;
  for (const Item& item : items) {
    if constexpr (std::is_same_v<Item, std::string>) {
      array.emplace_back(item);
    } else {
      array.push_back(to_value(item));
    }
  }
  return Value(std::move(array));
}

// Each leaves `into` as it is where the member is missing or is something else.
void take(const Value& object, const char* key, std::string& into) {
  const Value* const found = object.find(key);
  if (found != nullptr && found->text() != nullptr) into = *found->text();
}

void take(const Value& object, const char* key, std::int64_t& into) {
  const Value* const found = object.find(key);
  if (found != nullptr && found->integer() != nullptr) into = *found->integer();
}

void take(const Value& object, const char* key, int& into) {
  std::int64_t number = into;
  take(object, key, number);
  if (number >= 0 && number < (1 << 30)) into = static_cast<int>(number);
}

void take(const Value& object, const char* key, double& into) {
  const Value* const found = object.find(key);
  if (found == nullptr) return;
  if (found->real() != nullptr) into = *found->real();
  if (found->integer() != nullptr) into = static_cast<double>(*found->integer());
}

void take(const Value& object, const char* key,
          std::vector<std::pair<std::string, std::int64_t>>& into) {
  const Value* const found = object.find(key);
  if (found == nullptr || found->object() == nullptr) return;
  for (const json::Member& member : *found->object()) {
    if (member.value.integer() != nullptr) into.emplace_back(member.key, *member.value.integer());
  }
}

const Array& items(const Value& object, const char* key) {
  static const Array kNone;
  const Value* const found = object.find(key);
  return found == nullptr || found->array() == nullptr ? kNone : *found->array();
}

}  // namespace

Value to_json(const RankNotes& notes) {
  return Value(Object{})
      .add(kFormatKey, Value(kFormat))
      .add("rank", Value(notes.rank))
      .add("world_size", Value(notes.world_size))
      .add("model_part", Value(notes.model_part))
      .add("state", Value(notes.state))
      .add("error", Value(notes.error))
      .add("began", Value(notes.began))
      .add("seconds", Value(notes.seconds))
      .add("steps", Value(notes.steps))
      .add("skipped", Value(notes.skipped))
      .add("times", list(notes.times))
      .add("operations", Value(notes.operations))
      .add("memory_peaks", to_value(notes.memory_peaks))
      .add("not_finite", list(notes.not_finite))
      .add("fingerprints", list(notes.fingerprints));
}

std::optional<RankNotes> notes_from_json(const Value& value) {
  std::int64_t format = 0;
  take(value, kFormatKey, format);
  if (format != kFormat) return std::nullopt;
  RankNotes notes;
  take(value, "rank", notes.rank);
  take(value, "world_size", notes.world_size);
  take(value, "model_part", notes.model_part);
  take(value, "state", notes.state);
  take(value, "error", notes.error);
  take(value, "began", notes.began);
  take(value, "seconds", notes.seconds);
  take(value, "steps", notes.steps);
  take(value, "skipped", notes.skipped);
  for (const Value& item : items(value, "times")) {
    OpTime& time = notes.times.emplace_back();
    take(item, "kind", time.kind);
    take(item, "name", time.name);
    take(item, "count", time.count);
    take(item, "seconds", time.seconds);
    take(item, "longest", time.longest);
    take(item, "bytes", time.bytes);
  }
  take(value, "operations", notes.operations);
  take(value, "memory_peaks", notes.memory_peaks);
  for (const Value& item : items(value, "not_finite")) {
    if (item.text() != nullptr) notes.not_finite.push_back(*item.text());
  }
  for (const Value& item : items(value, "fingerprints")) {
    Fingerprint& print = notes.fingerprints.emplace_back();
    take(item, "step", print.step);
    take(item, "units", print.units);
  }
  return notes;
}

std::string notes_file_name(int rank) { return "rank_" + std::to_string(rank) + ".json"; }

bool write_notes(const std::filesystem::path& folder, const RankNotes& notes) noexcept {
  try {
    std::filesystem::create_directories(folder);
    const std::filesystem::path path = folder / notes_file_name(notes.rank);
    std::filesystem::path partial = path;
    partial += ".partial";
    {
      std::ofstream file(partial, std::ios::binary | std::ios::trunc);
      file << json::write(to_json(notes), {.indent = 1}) << '\n' << std::flush;
      if (!file) return false;
    }
    std::filesystem::rename(partial, path);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace capstan::profile
