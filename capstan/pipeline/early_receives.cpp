#include "capstan/pipeline/early_receives.h"

#include <algorithm>
#include <cstddef>

namespace capstan::pipeline {
namespace {

bool receives(Op op) { return op == Op::receive_input || op == Op::receive_gradient; }
bool transfers(Op op) { return receives(op) || op == Op::send_output || op == Op::send_gradient; }
bool works(Op op) { return op == Op::forward || op == Op::backward || op == Op::backward_inputs; }

}  // namespace

Schedule with_early_receives(const Schedule& schedule, int ahead) {
  Schedule result = schedule;
  for (std::vector<Instruction>& list : result.stages) {
    std::vector<std::size_t> begins = {0};  // where each work's instructions begin
    for (std::size_t at = 0; at < list.size(); ++at) {
      if (works(list[at].op)) begins.push_back(at + 1);
      if (!receives(list[at].op)) continue;
      const auto count = static_cast<std::size_t>(ahead);
      const std::size_t block = begins.size() > count ? begins.size() - 1 - count : 0;
      // Behind what that work sends, and behind the receives that have moved there before.
      std::size_t to = begins[block];
      while (to < at && transfers(list[to].op)) ++to;
      std::rotate(list.begin() + static_cast<std::ptrdiff_t>(to),
                  list.begin() + static_cast<std::ptrdiff_t>(at),
                  list.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      for (std::size_t i = block + 1; i < begins.size(); ++i) ++begins[i];
    }
  }
  return result;
}

}  // namespace capstan::pipeline
