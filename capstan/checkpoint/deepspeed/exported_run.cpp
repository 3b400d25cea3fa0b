#include "capstan/checkpoint/deepspeed/exported_run.h"

#include <cstdlib>

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::checkpoint {
namespace {

double field(const TrainingState& state, const char* name, double otherwise) {
  const auto found = state.loss_scale.find(name);
  return found == state.loss_scale.end() ? otherwise : found->second;
}

PyRef count(const TrainingState& state, const char* name, double otherwise) {
  return py_int(static_cast<std::int64_t>(field(state, name, otherwise)));
}

// What the Python package keeps beside the client's state; null where another engine saved.
const json::Value* python_state(const json::Value& stored) { return stored.find("deepspeed"); }

[[noreturn]] void refuse_mark(const std::string& mark) {
  throw IoError({.what = fmt::format("'{}' does not stand before what it marks", mark),
                 .where = "client_state",
                 .fix = "the index is damaged or was edited by hand: export another checkpoint"});
}

// What the Python package writes for values that JSON has no word for.
PyRef from_mark(const json::Member& marked, const ClientTensor& tensor) {
  const std::string& mark = marked.key;
  const bool named = mark == "$tensor" || mark == "$array" || mark == "$scalar";
  if (mark == "$int") {
    throw ConfigError({.what = "client_state holds an integer of more than 64 bits",
                       .where = "client_state",
                       .fix = "store it as text to export it"});
  }
  const bool text = named || mark == "$float";
  if (text != (marked.value.text() != nullptr)) refuse_mark(mark);
  if (mark == "$float") return py_real(std::strtod(marked.value.text()->c_str(), nullptr));
  if (named) return tensor(*marked.value.text());
  PyRef items = from_json(marked.value, tensor);
  if (mark == "$tuple") return py_tuple(items->items);
  if (mark != "$dict" && mark != "$counter") return items;
  Entries entries;
  entries.reserve(items->items.size());
  for (const PyRef& pair : items->items) {
    if (pair->items.size() != 2) refuse_mark(mark);
    entries.emplace_back(pair->items[0], pair->items[1]);
  }
  return py_dict(std::move(entries));
}

PyRef scale(const TrainingState& state) { return py_real(field(state, "scale", 1)); }

}  // namespace

PyRef from_json(const json::Value& value, const ClientTensor& tensor) {
  if (value.boolean() != nullptr) return py_bool(*value.boolean());
  if (value.integer() != nullptr) return py_int(*value.integer());
  if (value.real() != nullptr) return py_real(*value.real());
  if (value.text() != nullptr) return py_text(*value.text());
  if (value.array() != nullptr) {
    std::vector<PyRef> items;
    items.reserve(value.array()->size());
    for (const json::Value& item : *value.array()) items.push_back(from_json(item, tensor));
    return py_list(std::move(items));
  }
  if (value.object() == nullptr) return py_none();
  if (value.object()->size() == 1 && value.object()->front().key.starts_with('$')) {
    return from_mark(value.object()->front(), tensor);
  }
  Entries entries;
  entries.reserve(value.object()->size());
  for (const json::Member& member : *value.object()) {
    entries.emplace_back(py_text(member.key), from_json(member.value, tensor));
  }
  return py_dict(std::move(entries));
}

bool scales_dynamically(const TrainingState& state) {
  return state.loss_scale.contains("window_steps");
}

PyRef loss_scaler(const TrainingState& state) {
  if (!scales_dynamically(state)) {
    return py_object("deepspeed.runtime.fp16.loss_scaler.LossScaler", {},
                     {{py_text("cur_scale"), scale(state)}, {py_text("dynamic"), py_bool(false)}});
  }
  return py_object(
      "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler", {},
      {{py_text("cur_scale"), scale(state)},
       {py_text("dynamic"), py_bool(true)},
       {py_text("cur_iter"), count(state, "steps", 0)},
       {py_text("last_overflow_iter"), count(state, "last_overflow", -1)},
       {py_text("scale_factor"), py_real(field(state, "factor", 2))},
       {py_text("scale_window"), count(state, "window_steps", 1000)},
       {py_text("min_scale"), py_real(field(state, "min_scale", 1))},
       {py_text("delayed_shift"), count(state, "hysteresis", 2)},
       {py_text("cur_hysteresis"), count(state, "tolerance", 2)},
       {py_text("consecutive_hysteresis"), py_bool(field(state, "consecutive_hysteresis", 0) != 0)},
       {py_text("raise_error_at_min_scale"), py_bool(true)},
       {py_text("dtype"), py_object("torch.float16", {})}});
}

Entries loss_scale_entries(const TrainingState& state) {
  const bool dynamic = scales_dynamically(state);
  Entries entries = {{py_text("dynamic_loss_scale"), py_bool(dynamic)},
                     {py_text("cur_scale"), scale(state)},
                     {py_text("cur_iter"), count(state, "steps", 0)}};
  if (dynamic) {
    entries.emplace_back(py_text("last_overflow_iter"), count(state, "last_overflow", -1));
    entries.emplace_back(py_text("scale_factor"), py_real(field(state, "factor", 2)));
    entries.emplace_back(py_text("scale_window"), count(state, "window_steps", 1000));
  }
  return entries;
}

Entries client_entries(const std::string& client_state, const std::vector<std::string>& names,
                       const ClientTensor& tensor) {
  const json::Value stored = json::read(client_state, "client_state", kTextLimits);
  const json::Value* const inner =
      python_state(stored) != nullptr ? stored.find("client") : nullptr;
  Entries entries = from_json(inner != nullptr ? *inner : stored, tensor)->dict;
  if (inner != nullptr) return entries;
  for (const std::string& name : names) entries.emplace_back(py_text(name), tensor(name));
  return entries;
}

}  // namespace capstan::checkpoint
