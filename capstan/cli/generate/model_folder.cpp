#include "capstan/cli/generate/model_folder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/hugging_face.h"
#include "capstan/checkpoint/index.h"
#include "capstan/models/registry.h"

namespace capstan::cli::generate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kTokenizerFile = "tokenizer.json";

// How many blocks the weights are of: one more than the highest number that follows the name.
std::int64_t blocks_in(const checkpoint::Column& weights, const models::FileNames& names) {
  std::int64_t blocks = 0;
  for (const checkpoint::IndexTensor& tensor : weights.tensors) {
    std::string_view name = tensor.spec.name;
    if (name.starts_with(names.root)) name.remove_prefix(names.root.size());
    std::int64_t block = 0;
    if (!name.starts_with(names.blocks)) continue;
    const char* const digits = name.data() + names.blocks.size();
    if (std::from_chars(digits, name.data() + name.size(), block).ec != std::errc{}) continue;
    blocks = std::max(blocks, block + 1);
  }
  return blocks;
}

// config.json is a small file that anybody can write: no memory is taken by it before the weights
// say the same.
void check_sizes(const models::ConfigFile& config, const models::Blueprint& model,
                 const checkpoint::Reader& reader) {
  const models::FileNames names = model.file_names();
  const auto found = [&](const models::WeightSize& size) {
    if (size.tensor.empty()) {
      return blocks_in(*reader.index().find(checkpoint::kModelColumn), names);
    }
    const checkpoint::IndexTensor* stored =
        reader.find(checkpoint::kModelColumn, names.root + size.tensor);
    if (stored == nullptr) stored = reader.find(checkpoint::kModelColumn, size.tensor);
    if (stored != nullptr && stored->spec.shape.size() == 2) return stored->spec.shape[size.dim];
    config.refuse(
        fmt::format("the weights have no tensor \"{}\", as a {} must", size.tensor, model.title()),
        fmt::format("name the folder of a {}", model.title()));
  };
  for (const models::WeightSize& size : model.weight_sizes()) {
    if (size.value == found(size)) continue;
    config.refuse(fmt::format("\"{}\" is {} there, but the weights are of a model with {}",
                              size.key, size.value, found(size)),
                  "use the config.json that belongs to the weights");
  }
}

Tokens read_ends(const models::ConfigFile& config, std::int64_t vocab) {
  Tokens ends;
  const auto add = [&](const json::Value& value) {
    if (value.integer() == nullptr) return;
    if (*value.integer() < 0 || *value.integer() >= vocab) {
      config.refuse(fmt::format("\"eos_token_id\" is {}, outside the vocabulary of {}",
                                *value.integer(), vocab),
                    "write the number of the token that ends a text, or remove the key");
    }
    ends.push_back(static_cast<data::Token>(*value.integer()));
  };
  const json::Value* const value = config.find("eos_token_id");
  if (value == nullptr) return ends;
  add(*value);
  if (value->array() != nullptr) {
    for (const json::Value& each : *value->array()) add(each);
  }
  return ends;
}

// Without a trailing slash, so that there is a name.
fs::path tidy(const fs::path& folder) {
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

ConfigError no_such_tag(const fs::path& folder, const std::string& tag) {
  std::vector<std::string> tags;
  for (const checkpoint::Found& each : checkpoint::list_checkpoints(folder)) {
    tags.push_back(each.tag);
  }
  return ConfigError({.what = fmt::format("there is no checkpoint \"{}\"", tag),
                      .where = folder.string(),
                      .fix = tags.empty()
                                 ? "name a folder written by `capstan train --save`"
                                 : fmt::format("choose one of: {}", fmt::join(tags, ", "))});
}

// Sets where the weights and files are.
ModelFolder find_weights(const fs::path& given, const std::string& tag) {
  const fs::path folder = tidy(given);
  const bool one = fs::exists(folder / checkpoint::kIndexFile);
  if (!tag.empty() && (one || checkpoint::is_hugging_face(folder))) {
    throw ConfigError({.what = "this folder is one model, not several with tags",
                       .where = fmt::format("--tag {}: {}", tag, folder.string()),
                       .fix = "remove --tag, or name the folder that has the checkpoints"});
  }
  if (checkpoint::is_hugging_face(folder)) return {.weights = folder, .tag = "", .files = folder};
  if (one) {
    return {.weights = folder.parent_path(), .tag = folder.filename().string(), .files = folder};
  }
  if (!tag.empty() && !fs::exists(folder / tag)) throw no_such_tag(folder, tag);
  if (!tag.empty()) return {.weights = folder, .tag = tag, .files = folder / tag};
  if (const std::optional<checkpoint::Choice> choice = checkpoint::choose_newest(folder)) {
    // Without a tag: whoever loads says what it passed over, and takes the one before where bytes
    // of the newest turn out damaged.
    return {.weights = folder, .tag = "", .files = choice->taken.folder};
  }
  throw ConfigError({.what = "there is no model in this folder",
                     .where = folder.string(),
                     .fix = fmt::format("name a folder written by `capstan train --save`, or one "
                                        "with config.json and model.safetensors of a {}",
                                        models::model_titles())});
}

}  // namespace

ModelFolder open_model_folder(const fs::path& folder, const std::string& tag) {
  ModelFolder found = find_weights(folder, tag);
  const models::ConfigFile config(found.files / kConfigFile);
  found.model = models::read_blueprint(config);
  check_sizes(config, *found.model, checkpoint::open_reader(found.files));
  found.ends = read_ends(config, found.model->sizes().vocab);
  return found;
}

std::unique_ptr<data::Tokenizer> open_tokenizer(const ModelFolder& folder,
                                                const std::string& given) {
  const std::int64_t vocab = folder.model->sizes().vocab;
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!given.empty()) {
    tokenizer = data::load_tokenizer(given);
  } else if (fs::exists(folder.files / kTokenizerFile)) {
    tokenizer = data::load_tokenizer(folder.files / kTokenizerFile);
  } else {
    tokenizer = std::make_unique<data::ByteTokenizer>();
    if (vocab != tokenizer->vocab()) {
      throw ConfigError(
          {.what = fmt::format("the model has {} tokens, but there is no tokenizer", vocab),
           .where = (folder.files / kTokenizerFile).string(),
           .fix = "give --tokenizer tokenizer.json, the one the model was trained with"});
    }
  }
  if (tokenizer->vocab() <= vocab) return tokenizer;
  throw ConfigError(
      {.what = fmt::format("the tokenizer has {} tokens, the model {}", tokenizer->vocab(), vocab),
       .where = given.empty() ? (folder.files / kTokenizerFile).string() : given,
       .fix = "use the tokenizer that the model was trained with"});
}

}  // namespace capstan::cli::generate
