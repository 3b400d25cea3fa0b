#include "capstan/cli/train/checkpoints.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/engine/together.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::cli::train {

engine::ModelExtras file_names(models::Model& model) {
  engine::ModelExtras extras;
  for (const models::NamedWeight& weight : model.file_weights()) {
    engine::StoredAs stored{weight.parameter(), weight.name, weight.weight.size(0)};
    if (weight.cut) {
      stored.rows = weight.file_rows;
      stored.slice = layout::TensorSlice{weight.cut->shape, weight.cut->boxes().at(0)};
    }
    extras.stored_as.push_back(std::move(stored));
  }
  for (const auto& item : model.module().named_buffers())
    extras.stored_as.push_back({item.key(), "", {}});
  return extras;
}

namespace {

// In one sentence: of a model of another width no tensor fits, and one of other heads fits all the
// same.
void check_same_model(const std::filesystem::path& checkpoint, const models::Blueprint& model) {
  const std::filesystem::path path = checkpoint / "config.json";
  std::error_code missing;
  if (!std::filesystem::exists(path, missing)) return;
  const json::Document config = json::read_file(path);
  std::vector<std::string> differ;
  for (const auto& [key, option, here] : model.chosen_sizes()) {
    const json::Value* const there = config.root.find(key);
    if (there == nullptr || there->integer() == nullptr || *there->integer() == here) continue;
    differ.push_back(
        fmt::format("{} {} there, {} here ({})", key, *there->integer(), here, option));
  }
  if (differ.empty()) return;
  throw ConfigError(
      {.what = fmt::format("the checkpoint belongs to another model: {}", fmt::join(differ, ", ")),
       .where = checkpoint.string(),
       .fix = "give the --model and sizes that it was trained with, or remove --resume and save "
              "into another folder"});
}

}  // namespace

bool can_resume(comm::Group& group, c10::Device device, const models::Blueprint& model,
                const std::string& folder) {
  if (folder.empty()) return false;
  bool found = true;  // rank 0 looks for all, as it does when the engine loads
  engine::together(group, device, [&] {
    if (group.rank() != 0) return;
    const auto choice = checkpoint::choose_newest(folder);
    if (choice) check_same_model(choice->taken.folder, model);
    found = choice || checkpoint::find_deepspeed(folder, "");
  });
  return engine::on_all(group, device, found);
}

engine::Saved save(Engine& engine, const models::Blueprint& model, const data::Sampler& sampler,
                   const SaveWhere& where) {
  json::Value data{json::Object{}};
  const std::vector<double> rates = engine.learning_rates();
  data.add("position", json::Value(sampler.position()))
      .add("max_steps", json::Value(where.max_steps))
      .add("lr", json::Value(rates.empty() ? 0.0 : rates.front()));
  std::vector<checkpoint::ExtraFile> files = {
      {"config.json", model.config_json(where.end_of_text)}};
  if (!where.tokenizer.empty()) files.push_back({"tokenizer.json", where.tokenizer});
  return engine.save_checkpoint(where.folder, {.data = json::write(data, {.indent = 0}),
                                               .keep_last = where.keep_last,
                                               .extra_files = std::move(files)});
}

std::optional<Resumed> resume(Engine& engine, const models::Blueprint& model,
                              data::Sampler& sampler, const std::string& folder) {
  const auto loaded = engine.load_checkpoint(folder);
  if (!loaded) {
    if (!model.weights_loaded_later()) return std::nullopt;
    throw IoError(
        {.what = "the checkpoint that was here a moment ago is gone",
         .where = "--resume " + folder,
         .fix = "make sure that nobody removes checkpoints while a run starts from them"});
  }
  const json::Value data = json::read(loaded->data, "the checkpoint's data position");
  if (const json::Value* const position = data.find("position")) {
    if (position->integer() != nullptr) sampler.seek(*position->integer());
  }
  Resumed resumed{.tag = loaded->tag};
  const json::Value* const steps = data.find("max_steps");
  const json::Value* const lr = data.find("lr");
  if (steps != nullptr && steps->integer() != nullptr && lr != nullptr && lr->real() != nullptr) {
    resumed.max_steps = *steps->integer();
    resumed.lr = *lr->real();
  }
  return resumed;
}

}  // namespace capstan::cli::train
