#include "capstan/monitor/event.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>

namespace capstan::monitor {
namespace {

std::string full_name(std::string_view figure) { return "Train/Samples/" + std::string(figure); }

class Collected {
 public:
  explicit Collected(std::int64_t samples) : samples_(samples) {}

  void add(std::string_view figure, double value) {
    if (std::isfinite(value)) events_.push_back({full_name(figure), value, samples_});
  }
  // 0 stands for "not known".
  void add_known(std::string_view figure, double value) {
    if (value != 0) add(figure, value);
  }
  std::vector<Event> take() { return std::move(events_); }

 private:
  std::int64_t samples_;
  std::vector<Event> events_;
};

std::string memory_name(std::string kind) {
  std::replace(kind.begin(), kind.end(), ' ', '_');
  return "memory_" + kind + "_bytes";
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<Event> events_of(const StepStats& stats) {
  Collected found(stats.samples);
  found.add("train_loss", stats.loss);
  found.add("lr", stats.lr);
  if (stats.scales_loss) found.add("loss_scale", stats.loss_scale);
  if (stats.times) {
    found.add("elapsed_time_ms_forward", stats.times->forward);
    found.add("elapsed_time_ms_backward", stats.times->backward);
    found.add("elapsed_time_ms_backward_inner", stats.times->backward - stats.times->reduce);
    found.add("elapsed_time_ms_backward_allreduce", stats.times->reduce);
    found.add("elapsed_time_ms_step", stats.times->step);
  }
  found.add_known("grad_norm", stats.grad_norm);
  found.add("skipped_steps", static_cast<double>(stats.skipped_steps));
  found.add_known("samples_per_second", stats.samples_per_s);
  found.add_known("tokens_per_second", stats.tokens_per_s);
  found.add_known("flops_per_second", stats.flops_per_s);
  if (stats.gpu_use) found.add("gpu_use", *stats.gpu_use);
  found.add_known(memory_name("device peak"), static_cast<double>(stats.device_bytes));
  found.add_known(memory_name("host resident"), static_cast<double>(stats.host_bytes));
  for (const auto& [kind, bytes] : stats.held_bytes) {
    found.add(memory_name(kind), static_cast<double>(bytes));
  }
  return found.take();
}

Event validation_event(std::int64_t samples, double loss) {
  return {full_name("eval_loss"), loss, samples};
}

}  // namespace capstan::monitor
