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
#include "capstan/json/reader.h"

namespace capstan::cli::generate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr std::string_view kNamePrefix = "transformer.";  // of tensors, in some files

// config.json of a GPT-2, value by value.
class ModelConfig {
 public:
  explicit ModelConfig(const fs::path& path) : path_(path), document_(json::read_file(path)) {}

  const json::Value* find(const char* key) const {
    const json::Value* const value = document_.root.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::int64_t size(const char* key) const {
    const json::Value* const value = find(key);
    if (value != nullptr && value->integer() != nullptr) return *value->integer();
    refuse(fmt::format("\"{}\" is not a number there", key), "write the size of the model there");
  }
  // Anything else than `allowed` is another model than ours.
  void expect(const char* key, const std::vector<json::Value>& allowed) const {
    const json::Value* const value = find(key);
    if (value == nullptr) return;
    for (const json::Value& each : allowed) {
      if (*value == each) return;
    }
    refuse(fmt::format("\"{}\" has a value that Capstan's GPT-2 does not support", key),
           "use a GPT-2 with gelu_new, tied weights and an MLP four times as wide");
  }
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw ConfigError({.what = what, .where = path_.string(), .fix = fix});
  }

 private:
  fs::path path_;
  json::Document document_;
};

models::GptOptions read_model(const ModelConfig& config) {
  const json::Value* const type = config.find("model_type");
  if (type == nullptr || type->text() == nullptr || *type->text() != "gpt2") {
    config.refuse("this is not a GPT-2 (\"model_type\": \"gpt2\")",
                  "other models run through Python: capstan.initialize(model, config), "
                  "docs/inference.md");
  }
  models::GptOptions options;
  options.vocab = config.size("vocab_size");
  options.context = config.size("n_positions");
  options.width = config.size("n_embd");
  options.layers = config.size("n_layer");
  options.heads = config.size("n_head");
  options.dropout = 0;
  options.weights_loaded_later = true;
  if (const json::Value* const epsilon = config.find("layer_norm_epsilon")) {
    if (epsilon->real() != nullptr) options.layer_norm_epsilon = *epsilon->real();
  }
  config.expect("activation_function", {json::Value("gelu_new"), json::Value("gelu_pytorch_tanh")});
  config.expect("n_inner", {json::Value(4 * options.width)});
  config.expect("tie_word_embeddings", {json::Value(true)});
  config.expect("scale_attn_weights", {json::Value(true)});
  config.expect("scale_attn_by_inverse_layer_idx", {json::Value(false)});
  models::check(options);
  return options;
}

// How many blocks the weights are of: one more than the highest number in "h.<number>.".
std::int64_t blocks_in(const checkpoint::Column& weights) {
  std::int64_t blocks = 0;
  for (const checkpoint::IndexTensor& tensor : weights.tensors) {
    std::string_view name = tensor.spec.name;
    if (name.starts_with(kNamePrefix)) name.remove_prefix(kNamePrefix.size());
    std::int64_t block = 0;
    if (!name.starts_with("h.")) continue;
    const char* const digits = name.data() + 2;
    if (std::from_chars(digits, name.data() + name.size(), block).ec != std::errc{}) continue;
    blocks = std::max(blocks, block + 1);
  }
  return blocks;
}

// config.json is a small file that anybody can write: no memory is taken by it before the weights
// say the same.
void check_sizes(const ModelConfig& config, const models::GptOptions& model,
                 const checkpoint::Reader& reader) {
  const auto differs = [&](const char* key, std::int64_t said, std::int64_t found) {
    if (said == found) return;
    config.refuse(
        fmt::format("\"{}\" is {} there, but the weights are of a model with {}", key, said, found),
        "use the config.json that belongs to the weights");
  };
  const auto size = [&](const char* tensor, std::size_t dim) {
    const checkpoint::IndexTensor* stored =
        reader.find(checkpoint::kModelColumn, std::string(kNamePrefix) + tensor);
    if (stored == nullptr) stored = reader.find(checkpoint::kModelColumn, tensor);
    if (stored != nullptr && stored->spec.shape.size() == 2) return stored->spec.shape[dim];
    config.refuse(fmt::format("the weights have no tensor \"{}\", as a GPT-2 must", tensor),
                  "name the folder of a GPT-2");
  };
  differs("vocab_size", model.vocab, size("wte.weight", 0));
  differs("n_embd", model.width, size("wte.weight", 1));
  differs("n_positions", model.context, size("wpe.weight", 0));
  differs("n_layer", model.layers, blocks_in(*reader.index().find(checkpoint::kModelColumn)));
}

Tokens read_ends(const ModelConfig& config, std::int64_t vocab) {
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
                     .fix = "name a folder written by `capstan train --save`, or one with "
                            "config.json and model.safetensors of a GPT-2"});
}

}  // namespace

ModelFolder open_model_folder(const fs::path& folder, const std::string& tag) {
  ModelFolder found = find_weights(folder, tag);
  const ModelConfig config(found.files / kConfigFile);
  found.model = read_model(config);
  check_sizes(config, found.model, checkpoint::open_reader(found.files));
  found.ends = read_ends(config, found.model.vocab);
  return found;
}

std::unique_ptr<data::Tokenizer> open_tokenizer(const ModelFolder& folder,
                                                const std::string& given) {
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!given.empty()) {
    tokenizer = data::load_tokenizer(given);
  } else if (fs::exists(folder.files / kTokenizerFile)) {
    tokenizer = data::load_tokenizer(folder.files / kTokenizerFile);
  } else {
    tokenizer = std::make_unique<data::ByteTokenizer>();
    if (folder.model.vocab != tokenizer->vocab()) {
      throw ConfigError(
          {.what = fmt::format("the model has {} tokens, but there is no tokenizer",
                               folder.model.vocab),
           .where = (folder.files / kTokenizerFile).string(),
           .fix = "give --tokenizer tokenizer.json, the one the model was trained with"});
    }
  }
  if (tokenizer->vocab() <= folder.model.vocab) return tokenizer;
  throw ConfigError({.what = fmt::format("the tokenizer has {} tokens, the model {}",
                                         tokenizer->vocab(), folder.model.vocab),
                     .where = given.empty() ? (folder.files / kTokenizerFile).string() : given,
                     .fix = "use the tokenizer that the model was trained with"});
}

}  // namespace capstan::cli::generate
