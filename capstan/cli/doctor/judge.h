// What the evidence of a run says about why it failed or was slow. Values in, findings out.
#pragma once

#include <string>
#include <vector>

#include "capstan/cli/doctor/evidence.h"

namespace capstan::cli::doctor {

enum class Weight { cause, suspicion, remark };  // most likely first

struct Finding {
  Weight weight = Weight::remark;
  std::string what;
  std::vector<std::string> evidence;
  std::string advice;
};

// Those of all the functions below, the likely causes first.
std::vector<Finding> judge(const Evidence& evidence);

// Each is one question; without an answer it finds nothing.
using Findings = std::vector<Finding>;
Findings who_stopped_first(const Evidence& evidence);
Findings who_went_another_way(const Evidence& evidence);  // or did not come to a collective
Findings what_was_not_finite(const Evidence& evidence);
Findings whose_parameters_differ(const Evidence& evidence);
Findings who_is_slow(const Evidence& evidence);
Findings how_slow_disks_are(const Evidence& evidence);
Findings how_full_the_host_is(const Evidence& evidence);
Findings how_the_loss_went(const Evidence& evidence);
Findings what_was_skipped(const Evidence& evidence);
Findings how_the_speed_went(const Evidence& evidence);

}  // namespace capstan::cli::doctor
