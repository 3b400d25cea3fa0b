// What a timeline costs: the CPU time of training steps while every span is recorded, against steps
// of the same engine in which nobody reads, in turns. Bound: 1.02 while it records. And what a span
// costs while nobody reads, as a share of a step.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "capstan/base/guard.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/models/gpt.h"
#include "capstan/profile/recorder.h"
#include "capstan/profile/timeline.h"

namespace capstan {
namespace {

constexpr double kBound = 1.02;
constexpr int kWarmUp = 3;
constexpr std::int64_t kSequences = 4;

// Of all threads of this rank, in seconds: what other programs do does not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

engine::Options options_for(int stage) {
  engine::Options options;
  options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-4}};
  options.shard.stage = stage;
  options.shard.persistence_threshold_elems = 0;  // every unit is gathered and reduced
  return options;
}

struct Measured {
  double plain_s = 0;
  double ratio = 0;
  double spans = 0;  // of a step
};

Measured measure(Engine& engine, models::Gpt& model, const at::Tensor& ids, int steps) {
  const std::shared_ptr<profile::Recorder> recorder = engine.group().recorder();
  std::vector<double> plain;
  std::vector<double> ratios;
  std::size_t spans = 0;
  const auto step = [&] {
    const double begin = cpu_seconds();
    engine.backward(model->forward(ids, ids));
    engine.step();
    return cpu_seconds() - begin;
  };
  for (int i = 0; i < kWarmUp; ++i) step();
  for (int i = 0; i < steps; ++i) {
    plain.push_back(step());
    std::optional<profile::Reader> reader(std::in_place, recorder, profile::Kinds::all());
    const double begin = cpu_seconds();
    step();
    recorder->settle();
    spans += reader->take().size();
    ratios.push_back((cpu_seconds() - begin) / plain.back());
  }
  return {middle(plain), middle(ratios), static_cast<double>(spans) / steps};
}

// Seconds.
double silent_span() {
  constexpr int kSpans = 1'000'000;
  profile::Recorder recorder;
  const double begin = cpu_seconds();
  for (int i = 0; i < kSpans; ++i) {
    const profile::Span span(&recorder, {.name = "forward", .unit = "transformer.h.0"});
  }
  return (cpu_seconds() - begin) / kSpans;
}

int run(int argc, char** argv) {
  const int steps = argc > 1 ? std::stoi(argv[1]) : 40;
  at::set_num_threads(1);
  const std::unique_ptr<comm::World> world = comm::make_world(read_rank_env(process_env()));
  const bool shows = world->group().rank() == 0;
  models::GptOptions sizes = models::gpt_by_name("gpt2-mini");
  sizes.dropout = 0;
  const at::Tensor ids = at::randint(sizes.vocab, {kSequences, sizes.context}, at::kLong);
  const double silent = silent_span();
  double worst = 0;
  for (const int stage : {0, 3}) {
    models::Gpt model(sizes);
    Engine engine(model, options_for(stage), {.group = &world->group()});
    const Measured found = measure(engine, model, ids, steps);
    worst = std::max(worst, found.ratio);
    if (!shows) continue;
    fmt::print(
        "stage {}: {:.1f} ms of CPU per step, {:.0f} spans; recorded {:.4f} of that; nobody "
        "reads: {:.7f} of a step for all spans\n",
        stage, found.plain_s * 1e3, found.spans, found.ratio, silent * found.spans / found.plain_s);
  }
  if (shows) fmt::print("largest {:.4f}, bound {}\n", worst, kBound);
  world->close();
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "trace_bench: {}\n", text); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}
