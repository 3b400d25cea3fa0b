// The executor in real time: layers that sleep instead of computing, so that cores do not matter.
// Bound: the schedule's formula. Prints the measured efficiency and its part of the bound; fails
// below the promised part.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "capstan/pipeline/executor.h"
#include "capstan/pipeline/schedules.h"
#include "tests/support/run_ranks.h"

namespace capstan::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kForward =
    std::chrono::milliseconds(20);  // of a stage; each half of backward as long
constexpr double kActivationElems = 1 << 16;

class SleepingStage final : public Stage {
 public:
  explicit SleepingStage(int chunks) : forward_(kForward / chunks) {}

  Tensors inputs(int) override {
    return {at::zeros({static_cast<std::int64_t>(kActivationElems)})};
  }
  Tensors labels(int) override { return {}; }
  Tensors forward(int, const Tensors& inputs) override {
    rest(1);
    return {made_of(inputs[0], at::empty_like(inputs[0]))};
  }
  at::Tensor loss(const Tensors& outputs, const Tensors&) override {
    return made_of(inputs_.at(outputs[0].unsafeGetTensorImpl()), at::zeros({}));
  }
  void backward(int, const Differential& of) override {
    rest(2);
    at::Tensor& input = inputs_.at(of.outputs[0].unsafeGetTensorImpl());
    if (input.requires_grad()) input.mutable_grad() = at::empty_like(input);
  }
  Tensors backward_inputs(int, const Differential&, const Tensors& inputs) override {
    rest(1);
    Tensors gradients;
    for (const at::Tensor& input : inputs) {
      gradients.push_back(input.requires_grad() ? at::empty_like(input) : at::Tensor());
    }
    return gradients;
  }
  void backward_weights(int, const Differential&) override { rest(1); }
  void step() override {
    inputs_.clear();
    kept_.clear();
  }

  // Since the last call: a timer lets nobody sleep for exactly as long as asked for.
  double slept_seconds() {
    return std::exchange(slept_, Clock::duration{0}) / std::chrono::duration<double>(1);
  }

 private:
  void rest(int forwards) {
    const auto began = Clock::now();
    std::this_thread::sleep_for(forwards * forward_);
    slept_ += Clock::now() - began;
  }
  at::Tensor made_of(const at::Tensor& input, at::Tensor made) {
    made = made.detach().requires_grad_(true);
    kept_.push_back(made);
    inputs_[made.unsafeGetTensorImpl()] = input;
    return made;
  }

  std::chrono::nanoseconds forward_;
  Clock::duration slept_{0};
  Tensors kept_;
  std::map<const void*, at::Tensor> inputs_;
};

// The part of a step's time in which the busiest stage works.
double efficiency_of(Kind kind, const Shape& shape) {
  double longest = 0;
  double busiest = 0;
  std::mutex mutex;
  run_ranks(shape.stages, [&](comm::Group& group) {
    at::set_num_threads(1);  // libtorch's threads would have to be woken for every copy
    SleepingStage stage(shape.chunks);
    Executor executor(make_schedule(kind, shape), group, stage, at::kCPU);
    executor.run();  // channels are made
    stage.slept_seconds();
    group.barrier().wait();
    const auto began = Clock::now();
    executor.run();
    const std::chrono::duration<double> took = Clock::now() - began;
    const std::lock_guard lock(mutex);
    longest = std::max(longest, took.count());
    busiest = std::max(busiest, stage.slept_seconds());
  });
  return busiest / longest;
}

struct Row {
  Kind kind;
  int chunks;
  double idle_forwards;  // per stage but the first
  double promised;
};

int main_of() {
  bool kept = true;
  fmt::print("schedule     P   M    formula  measured  part of it\n");
  for (const Row& row : {Row{Kind::one_f_one_b, 1, 3, 0.97}, Row{Kind::interleaved, 2, 1.5, 0.95},
                         Row{Kind::zb_h1, 1, 1, 0.95}}) {
    for (const int stages : {2, 4, 8}) {
      for (const int per_stage : {1, 4, 8}) {
        const Shape shape = {stages, per_stage * stages, row.chunks};
        const double work = 3.0 * shape.micro_batches;
        const double formula = work / (work + row.idle_forwards * (stages - 1));
        const double measured = efficiency_of(row.kind, shape);
        kept = kept && measured >= row.promised * formula;
        fmt::print("{:<11} {:>2} {:>3}    {:.4f}    {:.4f}    {:.3f}{}\n", to_string(row.kind),
                   stages, shape.micro_batches, formula, measured, measured / formula,
                   measured >= row.promised * formula ? "" : "  below the promise");
        std::fflush(stdout);
      }
    }
  }
  return kept ? 0 : 1;
}

}  // namespace
}  // namespace capstan::pipeline

int main() { return capstan::pipeline::main_of(); }
