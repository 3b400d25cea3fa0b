#include "capstan/cli/train/checkpoints.h"

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/engine/together.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"
#include "capstan/models/gpt_weights.h"

namespace capstan::cli::train {

engine::ModelExtras file_names(models::GptImpl& model) {
  engine::ModelExtras extras;
  for (const models::NamedWeight& weight : models::file_weights(model)) {
    extras.stored_as.push_back({weight.name, weight.name, weight.weight.size(0)});
  }
  for (const auto& item : model.named_buffers()) extras.stored_as.push_back({item.key(), "", {}});
  return extras;
}

std::string hugging_face_config(const models::GptOptions& options, std::int64_t end_of_text) {
  json::Value config{json::Object{}};
  json::Array architectures;
  architectures.emplace_back("GPT2LMHeadModel");
  config.add("architectures", json::Value(std::move(architectures)))
      .add("model_type", json::Value("gpt2"))
      .add("vocab_size", json::Value(options.vocab))
      .add("n_positions", json::Value(options.context))
      .add("n_embd", json::Value(options.width))
      .add("n_layer", json::Value(options.layers))
      .add("n_head", json::Value(options.heads))
      .add("activation_function", json::Value("gelu_new"))
      .add("layer_norm_epsilon", json::Value(options.layer_norm_epsilon))
      .add("embd_pdrop", json::Value(options.dropout))
      .add("attn_pdrop", json::Value(options.dropout))
      .add("resid_pdrop", json::Value(options.dropout))
      .add("bos_token_id", json::Value(end_of_text))
      .add("eos_token_id", json::Value(end_of_text))
      .add("tie_word_embeddings", json::Value(true));
  return json::write(config) + "\n";
}

bool can_resume(comm::Group& group, c10::Device device, const std::string& folder) {
  if (folder.empty()) return false;
  bool found = true;  // rank 0 looks for all, as it does when the engine loads
  engine::together(group, device, [&] {
    if (group.rank() != 0) return;
    found = checkpoint::choose_newest(folder) || checkpoint::find_deepspeed(folder, "");
  });
  return engine::on_all(group, device, found);
}

engine::Saved save(Engine& engine, const models::GptOptions& model, const data::Sampler& sampler,
                   const SaveWhere& where) {
  json::Value data{json::Object{}};
  data.add("position", json::Value(sampler.position()));
  std::vector<checkpoint::ExtraFile> files = {
      {"config.json", hugging_face_config(model, where.end_of_text)}};
  if (!where.tokenizer.empty()) files.push_back({"tokenizer.json", where.tokenizer});
  return engine.save_checkpoint(where.folder, {.data = json::write(data, {.indent = 0}),
                                               .keep_last = where.keep_last,
                                               .extra_files = std::move(files)});
}

std::optional<std::string> resume(Engine& engine, const models::GptOptions& model,
                                  data::Sampler& sampler, const std::string& folder) {
  const auto loaded = engine.load_checkpoint(folder);
  if (!loaded) {
    if (!model.weights_loaded_later) return std::nullopt;
    throw IoError({.what = "the checkpoint that was here a moment ago is gone",
                   .where = "--resume " + folder,
                   .fix = "let nobody remove checkpoints while a run starts from them"});
  }
  const json::Value data = json::read(loaded->data, "the checkpoint's data position");
  if (const json::Value* const position = data.find("position")) {
    if (position->integer() != nullptr) sampler.seek(*position->integer());
  }
  return loaded->tag;
}

}  // namespace capstan::cli::train
