// `capstan train --profile`: what one step cost, module by module. Operations come from the model
// on paper, times from what the engine records.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capstan/engine/engine.h"
#include "capstan/models/blueprint.h"
#include "capstan/profile/module_costs.h"
#include "capstan/profile/recorder.h"
#include "capstan/profile/timeline.h"

namespace capstan::cli::train {

// Threads: one caller at a time.
class StepCosts {
 public:
  // `engine` must outlive this. Throws ConfigError where the model cannot be profiled.
  StepCosts(Engine& engine, const models::Blueprint& blueprint, std::int64_t tokens);

  // Around a step.
  void begin(std::int64_t steps_before);
  // The report, once, after the step that it is of.
  std::optional<std::string> end();

 private:
  std::vector<profile::ModuleCost> modules(const std::vector<profile::TimelineSpan>& spans) const;
  profile::CostFacts facts(const std::vector<profile::TimelineSpan>& spans,
                           const profile::ModuleCost& model) const;

  Engine& engine_;
  const std::vector<models::PartCost> parts_;
  std::optional<profile::Reader> reader_;  // in the step that is measured
  std::chrono::steady_clock::time_point began_;
};

// To the file that the options name, or the screen.
void write_report(const std::string& report, const std::string& path);

}  // namespace capstan::cli::train
