#include "capstan/cli/generate/run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "capstan/base/cpu_isa.h"
#include "capstan/base/error.h"
#include "capstan/base/log.h"
#include "capstan/base/text.h"
#include "capstan/cli/generate/decode.h"
#include "capstan/cli/generate/model_folder.h"
#include "capstan/cli/generate/prompts.h"
#include "capstan/cli/train/checkpoints.h"
#include "capstan/cli/train/setup.h"
#include "capstan/config/resolve.h"
#include "capstan/data/unicode.h"
#include "capstan/engine/engine_state.h"
#include "capstan/engine/forward_only.h"
#include "capstan/engine/together.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"
#include "capstan/models/attention_choice.h"
#include "capstan/models/make_model.h"

namespace capstan::cli::generate {
namespace {

// stdout is for the texts.
class ErrorLogger final : public Logger {
 public:
  explicit ErrorLogger(bool quiet) : quiet_(quiet) {}
  void log(LogLevel level, std::string_view text) override {
    if (quiet_ || level < LogLevel::warning) return;
    std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }

 private:
  bool quiet_;
};

config::Resolved read_config(const Arguments& arguments, int world_size, std::int64_t width) {
  const json::Document document = arguments.config.empty()
                                      ? json::read_document(default_config(), "the default")
                                      : json::read_argument(arguments.config);
  config::Context context;
  context.world_size = world_size;
  context.door = config::Door::program;
  context.hidden_size = width;
  return config::resolve(document, context);
}

SearchOptions search_options(const SearchArguments& arguments, Tokens ends) {
  if (arguments.sample && arguments.beams > 1) {
    throw ConfigError({.what = "beam search and random sampling cannot be combined",
                       .where = fmt::format("--num-beams {} --sample", arguments.beams),
                       .fix = "remove one of the two"});
  }
  SearchOptions options;
  options.max_new_tokens = arguments.max_new_tokens;
  options.ends = std::move(ends);
  options.sample = arguments.sample;
  options.draw = {arguments.temperature, arguments.top_k, arguments.top_p};
  options.seed = arguments.seed;
  options.beams = arguments.beams;
  options.length_penalty = arguments.length_penalty;
  if (arguments.early_stopping == "true") options.early_stopping = EarlyStopping::yes;
  if (arguments.early_stopping == "never") options.early_stopping = EarlyStopping::never;
  return options;
}

// The model on its device, without memory for weights: the engine makes one unit of them at a time.
std::shared_ptr<models::Model> make_model(const models::Blueprint& blueprint, c10::Device device) {
  const std::shared_ptr<models::Model> model = models::make_model(blueprint);
  for (const at::Tensor& param : model->module().parameters()) {
    param.requires_grad_(false);
    param.set_data(at::zeros({}, param.options().device(device)).expand(param.sizes()));
  }
  for (const at::Tensor& buffer : model->module().buffers()) buffer.set_data(buffer.to(device));
  model->module().eval();
  return model;
}

// Names in files as published ones have them too: without what they begin with, or twice.
engine::ModelExtras names_in_files(models::Model& model) {
  const models::FileNames names = model.blueprint().file_names();
  engine::ModelExtras extras = train::file_names(model);
  for (const auto& item : model.module().named_parameters()) {
    if (item.key().starts_with(names.root)) {
      extras.aliases[item.key().substr(names.root.size())] = item.key();
    }
  }
  for (const auto& [second, first] : names.tied) extras.aliases[second] = first;
  return extras;
}

IoError gone(const std::filesystem::path& folder) {
  return IoError({.what = "the checkpoint that was here a moment ago is gone",
                  .where = folder.string(),
                  .fix = "try again, and check whether another job removes checkpoints"});
}

ConfigError not_numbers(const std::filesystem::path& folder) {
  return ConfigError({.what = "the model's output is not a number (NaN), so there is no next token",
                      .where = folder.string(),
                      .fix =
                          "the weights are damaged, their training diverged, or they overflow in "
                          "fp16: use another checkpoint, or bf16 or fp32 in --config"});
}

class Generator {
 public:
  Generator(const Arguments& arguments, comm::World& world, const ModelFolder& folder)
      : arguments_(arguments),
        world_(world),
        group_(world.group()),
        folder_(folder),
        logger_(group_.rank() != 0),
        device_(train::choose_device(arguments.device, world.env())),
        tokenizer_(open_tokenizer(folder, arguments.tokenizer)) {
    models::avoid_cudnn_attention();
    const std::optional<data::Token> end = tokenizer_->end_of_text();
    if (folder_.ends.empty() && end) folder_.ends.push_back(*end);
  }

  void load(const config::Resolved& resolved) {
    for (const ErrorInfo& warning : resolved.warnings) {
      logger_.log(LogLevel::warning, fmt::format("warning: {} ({})", warning.what, warning.where));
    }
    model_ = make_model(*folder_.model, device_);
    engine::Options options = resolved.engine;
    options.profile.steps_per_print = 0;
    engine::Parts parts{.group = world_, .logger = &logger_, .extras = names_in_files(*model_)};
    engine::make_forward_only(options, parts);
    engine_ = std::make_unique<Engine>(models::module_of(model_), options, parts);
    const auto loaded =
        engine_->load_checkpoint(folder_.weights, {.tag = folder_.tag, .load_module_only = true});
    if (!loaded) throw gone(folder_.weights);
    if (group_.rank() == 0) {
      std::fprintf(stderr, "%s\n", ("model: " + loaded->folder.string()).c_str());
    }
  }

  void run() {
    const auto began = std::chrono::steady_clock::now();
    const std::vector<std::string> prompts = shared_prompts();
    const SearchOptions options = search_options(arguments_.search, folder_.ends);
    std::vector<std::unique_ptr<Search>> mine;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      if (!is_mine(i)) continue;
      SearchOptions own = options;
      own.seed += i;
      mine.push_back(make_search(encode(prompts[i]), own));
    }
    run_searches(
        mine, [this](std::span<models::Sequences> all) { return pass(all); },
        [this](bool work) { return !engine::on_all(group_, device_, !work); },
        {.context = context(),
         .device = device_,
         .batch = arguments_.batch,
         .cache = !arguments_.no_cache});
    print(prompts, collect(prompts.size(), mine), std::chrono::steady_clock::now() - began);
  }

 private:
  bool is_mine(std::size_t prompt) const {
    return static_cast<int>(prompt % static_cast<std::size_t>(group_.size())) == group_.rank();
  }
  std::int64_t context() const {
    const std::int64_t most = folder_.model->sizes().context;
    return arguments_.context > 0 ? std::min(arguments_.context, most) : most;
  }

  std::vector<std::string> shared_prompts() {
    json::Array array;
    engine::together(group_, device_, [&] {
      if (group_.rank() != 0) return;
      for (const std::string& prompt : read_prompts(arguments_)) array.emplace_back(prompt);
    });
    const std::string text =
        engine::text_from(group_, device_, json::write(json::Value(std::move(array))), 0);
    std::vector<std::string> prompts;
    const json::Value shared = json::read(text, "the prompts");
    for (const json::Value& each : *shared.array()) prompts.push_back(*each.text());
    return prompts;
  }

  Tokens encode(const std::string& prompt) {
    Tokens tokens = tokenizer_->encode(prompt);
    if (tokens.empty()) tokens.push_back(tokenizer_->end_of_text().value_or(0));
    return tokens;
  }

  std::vector<at::Tensor> pass(std::span<models::Sequences> all) {
    std::vector<at::Tensor> logits = model_->next_logits(all);
    engine_->inside().sharded().end_pass();
    for (const at::Tensor& each : logits) {
      if (at::isnan(each).any().item<bool>()) throw not_numbers(folder_.files);
    }
    return logits;
  }

  // By prompt: its tokens and those that follow, wherever they were made.
  std::vector<Tokens> collect(std::size_t prompts,
                              const std::vector<std::unique_ptr<Search>>& mine) {
    json::Array own;
    for (const auto& search : mine) {
      json::Array tokens;
      for (const data::Token token : search->best()) {
        tokens.emplace_back(static_cast<std::int64_t>(token));
      }
      own.emplace_back(std::move(tokens));
    }
    const std::string sent = json::write(json::Value(std::move(own)), {.indent = 0});
    const auto ranks = static_cast<std::size_t>(group_.size());
    std::vector<Tokens> texts(prompts);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const json::Value made = json::read(
          engine::text_from(group_, device_, sent, static_cast<int>(rank)), "a rank's texts");
      for (std::size_t i = 0; i < made.array()->size(); ++i) {
        for (const json::Value& token : *(*made.array())[i].array()) {
          texts[i * ranks + rank].push_back(static_cast<data::Token>(*token.integer()));
        }
      }
    }
    return texts;
  }

  std::string line(const std::string& prompt, Tokens tokens, std::size_t given) {
    const Tokens made(tokens.begin() + static_cast<std::ptrdiff_t>(given), tokens.end());
    const bool ended =
        std::find(folder_.ends.begin(), folder_.ends.end(), tokens.back()) != folder_.ends.end();
    if (ended && !made.empty()) tokens.pop_back();
    std::string text = data::printable_text(tokenizer_->decode(tokens));
    if (!arguments_.json) return text;
    json::Array numbers;
    for (const data::Token token : made) numbers.emplace_back(static_cast<std::int64_t>(token));
    json::Value object{json::Object{}};
    object.add("prompt", json::Value(prompt))
        .add("text", json::Value(text))
        .add("new_tokens", json::Value(std::move(numbers)));
    return json::write(object, {.indent = 0});
  }

  void print(const std::vector<std::string>& prompts, const std::vector<Tokens>& texts,
             std::chrono::duration<double> took) {
    if (group_.rank() != 0) return;
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::size_t given = encode(prompts[i]).size();
      tokens += texts[i].size() - given;
      std::fprintf(stdout, "%s\n", line(prompts[i], texts[i], given).c_str());
    }
    std::fflush(stdout);
    const std::string summary = fmt::format(
        "{} for {} in {:.1f} s ({:.1f} tokens/s) on {}; at most on a device: "
        "{}",
        counted(static_cast<std::int64_t>(tokens), "token"), counted(std::ssize(prompts), "prompt"),
        took.count(), static_cast<double>(tokens) / took.count(), counted(group_.size(), "rank"),
        store::to_text(engine_->ledger().peak()));
    std::fprintf(stderr, "%s\n", summary.c_str());
  }

  const Arguments& arguments_;
  comm::World& world_;
  comm::Group& group_;
  ModelFolder folder_;
  ErrorLogger logger_;
  c10::Device device_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::shared_ptr<models::Model> model_;
  std::unique_ptr<Engine> engine_;  // after what it uses
};

}  // namespace

int run(const Arguments& arguments, comm::StartNccl start_nccl) {
  avoid_broken_amx();
  const RankEnv ranks = read_rank_env(process_env());
  const ModelFolder folder = open_model_folder(arguments.model, arguments.tag);
  const config::Resolved resolved =
      read_config(arguments, ranks.world_size, folder.model->sizes().width);
  const auto world = comm::make_world(ranks, resolved.engine.comm, start_nccl);
  {
    Generator generator(arguments, *world, folder);
    generator.load(resolved);
    generator.run();
  }
  world->close();
  return 0;
}

}  // namespace capstan::cli::generate
