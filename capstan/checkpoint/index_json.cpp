// The index as JSON text and back.
#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_name.h"
#include "capstan/checkpoint/index.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::checkpoint {
namespace {

using json::Array;
using json::Object;
using json::Value;

constexpr const char* kFormatName = "capstan checkpoint";
// The second has texts in files of their own, the third tensors in several slices. An index without
// them is one of the first, so that older programs read it.
constexpr std::int64_t kFirstVersion = 1;
constexpr std::int64_t kTextFilesVersion = 2;
constexpr std::int64_t kSlicesVersion = 3;
// As large as whatever was saved makes it.
constexpr json::ReadLimits kIndexLimits{.bytes = std::numeric_limits<std::size_t>::max()};

template <typename Items, typename Make>
Value array_of(const Items& items, Make&& make) {
  Array array;
  array.reserve(items.size());
  for (const auto& item : items) array.push_back(make(item));
  return Value(std::move(array));
}

template <typename Map>
Value object_of(const Map& map) {
  Value object{Object{}};
  for (const auto& [key, value] : map) object.add(key, Value(value));
  return object;
}

Value texts(const std::vector<std::string>& items) {
  return array_of(items, [](const std::string& item) { return Value(item); });
}

Value state_json(const TrainingState& state) {
  Value object{Object{}};
  object.add("stage", Value(state.stage))
      .add("world_size", Value(state.world_size))
      .add("precision", object_of(state.precision))
      .add("progress", object_of(state.progress))
      .add("loss_scale", object_of(state.loss_scale));
  Value optimizer{Object{}};
  optimizer.add("kind", Value(state.optimizer))
      .add("states", texts(state.optimizer_states))
      .add("scalars", object_of(state.optimizer_scalars))
      .add("groups", array_of(state.param_groups, [](const ParamGroup& group) {
             Value each{Object{}};
             each.add("params", texts(group.params)).add("hyper", object_of(group.hyper));
             return each;
           }));
  object.add("optimizer", std::move(optimizer));
  for (const auto& [key, text] : kTexts) object.add(key, json::read(state.*text, key));
  object.add("aliases", object_of(state.aliases))
      .add("frozen", texts(state.frozen))
      .add("buffers", texts(state.buffers));
  return object;
}

// [end, checksum, end, checksum, ...]: short, because there are many.
Value blocks_json(const std::vector<Block>& blocks) {
  Array flat;
  flat.reserve(2 * blocks.size());
  for (const Block& block : blocks) {
    flat.emplace_back(block.end);
    flat.emplace_back(checksum_text(block.sum));
  }
  return Value(std::move(flat));
}

Value counts_json(const std::vector<std::int64_t>& counts) {
  return array_of(counts, [](std::int64_t count) { return Value(count); });
}

void add_place(Value& object, const StoredSlice& slice) {
  object.add("file", Value(slice.file))
      .add("begin", Value(slice.begin))
      .add("blocks", blocks_json(slice.blocks));
}

Value slice_json(const StoredSlice& slice) {
  Value object{Object{}};
  object.add("offset", counts_json(slice.box.offset)).add("length", counts_json(slice.box.length));
  add_place(object, slice);
  return object;
}

Value tensor_json(const IndexTensor& tensor) {
  Value object{Object{}};
  object.add("name", Value(tensor.spec.name))
      .add("dtype", Value(name(tensor.spec.element)))
      .add("shape", counts_json(tensor.spec.shape));
  if (tensor.is_whole()) {
    add_place(object, tensor.slices.front());
  } else {
    object.add("slices", array_of(tensor.slices, slice_json));
  }
  return object;
}

std::int64_t version_of(const Index& index) {
  for (const Column& column : index.columns) {
    if (!std::ranges::all_of(column.tensors, &IndexTensor::is_whole)) return kSlicesVersion;
  }
  return index.text_files.empty() ? kFirstVersion : kTextFilesVersion;
}

Value file_json(const FileFact& file) {
  Value object{Object{}};
  object.add("name", Value(file.name)).add("bytes", Value(file.bytes));
  if (file.sum) object.add("checksum", Value(checksum_text(*file.sum)));
  return object;
}

// Reads members of an object and remembers the path for messages.
class Fields {
 public:
  Fields(const Value& object, std::string where) : object_(object), where_(std::move(where)) {
    if (object.object() == nullptr) fail("an entry", "an object");
  }

  const Value& value(std::string_view key) const {
    const Value* const found = object_.find(key);
    if (found == nullptr) fail(key, "a value");
    return *found;
  }
  std::string text(std::string_view key) const {
    if (value(key).text() == nullptr) fail(key, "a text");
    return *value(key).text();
  }
  std::int64_t integer(std::string_view key) const {
    if (value(key).integer() == nullptr) fail(key, "an integer");
    return *value(key).integer();
  }
  // At least `least`; no more than any run or disk has.
  std::int64_t count(std::string_view key, std::int64_t most = kMostCounted,
                     std::int64_t least = 0) const {
    const std::int64_t found = integer(key);
    if (found < least || found > most) {
      fail(key, fmt::format("a number from {} to {}", least, most));
    }
    return found;
  }
  // Of a file or folder in the checkpoint's own: never a path to elsewhere.
  std::string name(std::string_view key) const {
    std::string found = text(key);
    if (!is_plain_name(found)) fail(key, "the name of a file in this folder");
    return found;
  }
  const Array& array(std::string_view key) const {
    if (value(key).array() == nullptr) fail(key, "an array");
    return *value(key).array();
  }
  const Object& object(std::string_view key) const {
    if (value(key).object() == nullptr) fail(key, "an object");
    return *value(key).object();
  }
  std::vector<std::string> texts(std::string_view key) const {
    std::vector<std::string> result;
    for (const Value& each : array(key)) {
      if (each.text() == nullptr) fail(key, "a list of texts");
      result.push_back(*each.text());
    }
    return result;
  }
  std::vector<std::int64_t> counts(std::string_view key) const {
    std::vector<std::int64_t> result;
    for (const Value& each : array(key)) {
      if (each.integer() == nullptr || *each.integer() < 0) fail(key, "a list of counts");
      result.push_back(*each.integer());
    }
    return result;
  }
  std::map<std::string, double> numbers(std::string_view key) const {
    std::map<std::string, double> result;
    for (const json::Member& each : object(key)) {
      if (each.value.real() != nullptr) {
        result[each.key] = *each.value.real();
      } else if (each.value.integer() != nullptr) {
        result[each.key] = static_cast<double>(*each.value.integer());
      } else {
        fail(key, "an object of numbers");
      }
    }
    return result;
  }
  std::map<std::string, std::string> text_map(std::string_view key) const {
    std::map<std::string, std::string> result;
    for (const json::Member& each : object(key)) {
      if (each.value.text() == nullptr) fail(key, "an object of texts");
      result[each.key] = *each.value.text();
    }
    return result;
  }
  Fields inside(std::string_view key) const {
    return {value(key), fmt::format("{}: {}", where_, key)};
  }
  const std::string& where() const { return where_; }

  [[noreturn]] void fail(std::string_view key, std::string_view wanted) const {
    throw IoError({.what = fmt::format("'{}' of the index is missing or is not {}", key, wanted),
                   .where = where_,
                   .fix = "the index is damaged or was written by another version of Capstan"});
  }

 private:
  const Value& object_;
  std::string where_;
};

std::string json_text(const Value& value) { return json::write(value, {.indent = 0}); }

TrainingState read_state(const Fields& in) {
  TrainingState state;
  state.stage = static_cast<int>(in.count("stage", 3));
  state.world_size = static_cast<int>(in.count("world_size", kMostRanks, 1));
  state.precision = in.text_map("precision");
  for (const json::Member& each : in.object("progress")) {
    state.progress[each.key] = in.inside("progress").count(each.key);
  }
  const auto skipped = state.progress.find("skipped");
  const auto steps = state.progress.find("steps");
  if (skipped != state.progress.end() &&
      (steps == state.progress.end() || skipped->second > steps->second)) {
    in.fail("progress", "one of a run: more steps were skipped than taken");
  }
  state.loss_scale = in.numbers("loss_scale");
  if (!is_loss_scale(state.loss_scale)) in.fail("loss_scale", "a state of the loss scale");
  const Fields optimizer = in.inside("optimizer");
  state.optimizer = optimizer.text("kind");
  state.optimizer_states = optimizer.texts("states");
  state.optimizer_scalars = optimizer.numbers("scalars");
  if (in.value("optimizer").find("groups") != nullptr) {
    for (const Value& each : optimizer.array("groups")) {
      const Fields group(each, optimizer.where() + ": groups");
      state.param_groups.push_back({group.texts("params"), group.numbers("hyper")});
    }
  }
  // The rest of it is its saver's own.
  if (in.value("data").find("position") != nullptr) in.inside("data").count("position");
  for (const auto& [key, text] : kTexts) state.*text = json_text(in.value(key));
  state.aliases = in.text_map("aliases");
  state.frozen = in.texts("frozen");
  state.buffers = in.texts("buffers");
  return state;
}

// Each ends between two elements: ranges of elements are read block by block.
std::vector<Block> read_blocks(const Fields& in, const TensorSpec& spec) {
  std::vector<Block> blocks;
  const Array& flat = in.array("blocks");
  if (flat.size() % 2 != 0) in.fail("blocks", "a list of ends and checksums");
  std::int64_t last = 0;
  for (std::size_t i = 0; i + 1 < flat.size(); i += 2) {
    const auto sum =
        flat[i + 1].text() == nullptr ? std::nullopt : read_checksum(*flat[i + 1].text());
    if (flat[i].integer() == nullptr || *flat[i].integer() <= last ||
        *flat[i].integer() % size_bytes(spec.element) != 0 || !sum) {
      in.fail("blocks", "a list of ends and checksums");
    }
    if (*flat[i].integer() - last > kBlockBytes)
      in.fail("blocks", "a list of blocks of at most 16 MiB");
    last = *flat[i].integer();
    blocks.push_back({last, *sum});
  }
  if (last != spec.bytes()) in.fail("blocks", "a cover of the tensor");
  return blocks;
}

StoredSlice read_slice(const Fields& in, const TensorSpec& tensor, layout::Box box) {
  const TensorSpec stored = slice_spec(tensor, box);
  return {std::move(box), in.name("file"), in.count("begin"), read_blocks(in, stored)};
}

IndexTensor read_tensor(const Value& value, const std::string& where) {
  const Fields in(value, where);
  IndexTensor tensor;
  tensor.spec.name = in.text("name");
  const auto element = element_named(in.text("dtype"));
  if (!element) in.fail("dtype", "a type of this format");
  tensor.spec.element = *element;
  tensor.spec.shape = in.counts("shape");
  if (!is_countable(tensor.spec)) in.fail("shape", "one that fits on any disk");
  if (value.find("slices") == nullptr) {
    tensor.slices.push_back(read_slice(in, tensor.spec, layout::whole_box(tensor.spec.shape)));
    return tensor;
  }
  for (const Value& each : in.array("slices")) {
    const Fields slice(each, where + ": slices of " + tensor.spec.name);
    layout::Box box{slice.counts("offset"), slice.counts("length")};
    if (!layout::fits(box, tensor.spec.shape)) slice.fail("offset", "that of a part of the tensor");
    tensor.slices.push_back(read_slice(slice, tensor.spec, std::move(box)));
  }
  return tensor;
}

}  // namespace

std::string to_json(const Index& index) {
  Value root{Object{}};
  root.add("format", Value(kFormatName))
      .add("version", Value(version_of(index)))
      .add("tag", Value(index.tag))
      .add("sequence", Value(index.sequence))
      .add("latest", Value(index.latest))
      .add("saved_at", Value(index.saved_at))
      .add("state", state_json(index.state));
  if (!index.text_files.empty()) root.add("text_files", object_of(index.text_files));
  root.add("files", array_of(index.files, file_json));
  root.add("columns", array_of(index.columns, [](const Column& column) {
             Value object{Object{}};
             object.add("name", Value(column.name));
             object.add("tensors", array_of(column.tensors, tensor_json));
             return object;
           }));
  return json::write(root, {.indent = 1}) + "\n";
}

Index index_from_json(const std::string& text, const std::string& source) {
  Value root;
  try {
    root = json::read(text, source, kIndexLimits);
  } catch (const ConfigError& error) {
    throw IoError({.what = "the index is not JSON: " + error.info().what,
                   .where = error.info().where,
                   .fix = "load another checkpoint"});
  }
  const Fields in(root, source);
  const bool known = in.text("format") == kFormatName;
  const std::int64_t version = in.integer("version");
  if (!known || version < kFirstVersion || version > kSlicesVersion) {
    in.fail("format", fmt::format("'{}', version 1, 2 or 3", kFormatName));
  }
  Index index{.tag = in.name("tag"), .sequence = in.count("sequence")};
  index.latest = in.value("latest").boolean() != nullptr && *in.value("latest").boolean();
  index.saved_at = in.text("saved_at");
  index.state = read_state(in.inside("state"));
  for (const Value& value : in.array("files")) {
    const Fields file(value, source + ": files");
    FileFact fact{.name = file.name("name"), .bytes = file.count("bytes")};
    if (value.find("checksum") != nullptr) fact.sum = read_checksum(file.text("checksum"));
    index.files.push_back(std::move(fact));
  }
  for (const Value& value : in.array("columns")) {
    const Fields fields(value, source + ": columns");
    Column column{.name = fields.name("name"), .tensors = {}};
    for (const Value& each : fields.array("tensors")) {
      column.tensors.push_back(read_tensor(each, source + ": column " + column.name));
    }
    index.columns.push_back(std::move(column));
  }
  const bool has_texts = version == kSlicesVersion && root.find("text_files") != nullptr;
  if (version == kTextFilesVersion || has_texts) index.text_files = in.text_map("text_files");
  check(index, source);
  return index;
}

}  // namespace capstan::checkpoint
