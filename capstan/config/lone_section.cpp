#include "capstan/config/lone_section.h"

namespace capstan::config {

std::map<std::string, json::Value> lone_defaults(std::string_view section, std::int64_t stage) {
  if (section == "zero_optimization") return {{"overlap_comm", json::Value(stage == 3)}};
  if (section == "bf16") {
    return {{"immediate_grad_update", json::Value(true)},
            {"check_grad_overflow", json::Value(false)}};
  }
  if (section.starts_with("zero_optimization.offload_")) {
    return {{"pin_memory", json::Value(false)}};
  }
  return {};
}

}  // namespace capstan::config
