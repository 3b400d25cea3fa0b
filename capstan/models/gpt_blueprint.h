// GPT-2 on paper.
#pragma once

#include "capstan/models/blueprint.h"
#include "capstan/models/config_file.h"
#include "capstan/models/gpt_options.h"
#include "capstan/models/gpt_tape.h"

namespace capstan::models {

class GptBlueprint final : public Blueprint {
 public:
  // Throws ConfigError when no model can have these sizes.
  explicit GptBlueprint(const GptOptions& options);
  // Throws ConfigError that says what of config.json we cannot do.
  explicit GptBlueprint(const ConfigFile& config);

  const GptOptions& options() const { return options_; }

  std::string title() const override { return "GPT-2"; }
  Sizes sizes() const override;
  bool weights_loaded_later() const override { return options_.weights_loaded_later; }
  std::shared_ptr<const Blueprint> with(const Changes& changes) const override;
  std::int64_t parameter_count() const override { return models::parameter_count(options_); }
  double flops_per_token(std::int64_t tokens) const override {
    return models::flops_per_token(options_, tokens);
  }
  std::vector<double> layer_costs(std::int64_t tokens) const override;
  Moved moved_bytes(DType dtype) const override;
  Paper on_paper(const TapeOptions& how) const override { return gpt_paper(options_, how); }
  FileNames file_names() const override;
  std::string config_json(std::int64_t end_of_text) const override;
  std::vector<ChosenSize> chosen_sizes() const override;
  std::vector<WeightSize> weight_sizes() const override;

 private:
  GptOptions options_;
};

}  // namespace capstan::models
