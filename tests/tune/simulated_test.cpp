// The search against the whole grid, on simulated machines with models of three kinds.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "capstan/tune/search.h"

namespace capstan::tune {
namespace {

// GiB, TFLOP/s, GiB/s.
struct Machine {
  const char* name;
  double params;          // GiB in 16 bits
  double activations;     // GiB per sample
  double flops;           // TFLOP per sample
  double device = 80;     // GiB
  double peak = 300;      // TFLOP/s
  double half_speed = 4;  // micro-batch with half of the peak
  double link = 100;      // GiB/s between ranks
  double host = 20;       // GiB/s to and from the host
  int ranks = 8;
};

constexpr Machine kMachines[] = {
    {.name = "small model, much to compute", .params = 0.7, .activations = 3, .flops = 4},
    {.name = "large model, hardly fits", .params = 26, .activations = 6, .flops = 180},
    {.name = "slow links", .params = 14, .activations = 2, .flops = 90, .peak = 120, .link = 6},
};

Space space_for(const Machine& machine) {
  Space space{.stages = {0, 1, 2, 3}, .data_ranks = machine.ranks};
  Axis stage{.name = "stage", .ordered = true};
  for (int i = 0; i <= 3; ++i) {
    stage.settings.push_back({.label = "stage " + std::to_string(i), .memory = 3 - i});
  }
  space.axes = {stage,
                {.name = "recomputation",
                 .settings = {{.label = "off", .memory = 1}, {.label = "on", .memory = 0}},
                 .ordered = true},
                {.name = "placement",
                 .settings = {{.label = "device", .memory = 2},
                              {.label = "optimizer", .memory = 1, .least_stage = 1},
                              {.label = "both", .memory = 0, .least_stage = 3}},
                 .ordered = true},
                {.name = "prefetch",
                 .settings = {{.label = "some", .memory = 1},
                              {.label = "none", .memory = 0, .least_stage = 3},
                              {.label = "much", .memory = 2, .least_stage = 3}},
                 .ordered = true}};
  for (std::int64_t micro = 1; micro <= 64; micro *= 2) {
    space.micros.push_back({micro, 64 / micro});  // the batch stays
  }
  return space;
}

double gib(const Machine& machine, const Space& space, const Combination& at) {
  const int stage = space.stage_of(at.choice);
  const double ranks = machine.ranks;
  const double params = machine.params;
  double held = at.choice[2] == 2 ? 1 : stage == 3 ? params / ranks + 1 : params;
  held += stage >= 2 ? params / ranks : params;  // gradients
  if (at.choice[2] == 0) held += 6 * params / (stage >= 1 ? ranks : 1);
  if (stage == 3) held += at.choice[3] == 2 ? 4 : at.choice[3] == 1 ? 0 : 1;
  const double samples =
      static_cast<double>(space.micros[static_cast<std::size_t>(at.micro)].samples);
  return held + samples * machine.activations * (at.choice[1] == 1 ? 0.15 : 1);
}

double seconds(const Machine& machine, const Space& space, const Combination& at) {
  const MicroBatch& micro = space.micros[static_cast<std::size_t>(at.micro)];
  const auto samples = static_cast<double>(micro.samples);
  const auto steps = static_cast<double>(micro.accumulation_steps);
  const int stage = space.stage_of(at.choice);
  const double speed = machine.peak * samples / (samples + machine.half_speed);
  const double compute = samples * machine.flops * (at.choice[1] == 1 ? 1.33 : 1) / speed;
  const double traffic = machine.params / machine.link;
  double wire = stage == 3 ? 3 * traffic * steps : 2 * traffic * (stage == 2 ? steps / 2 + 1 : 1);
  const double hidden[] = {0.7, 0.2, 0.8};
  if (stage == 3) wire *= 1 - hidden[at.choice[3]];
  const double share = stage >= 1 ? machine.ranks : 1;
  double rest = 0.01 + (at.choice[2] > 0 ? 8 : 0.2) * machine.params / share / machine.host;
  if (at.choice[2] == 2) rest += steps * 2 * machine.params / share / machine.host;
  return compute * steps + wire + rest;
}

Outcome run_on(const Machine& machine, const Space& space, const Combination& at) {
  if (gib(machine, space, at) > machine.device) return {.end = End::out_of_memory};
  const double took = seconds(machine, space, at);
  return {.end = End::measured,
          .latency = took,
          .throughput = static_cast<double>(space.batch_of(at)) / took};
}

struct Found {
  double share = 0;   // of the grid's best throughput
  double trials = 0;  // of the grid's
};

Found found_on(const Machine& machine, const Predict& predict = {}) {
  const Space space = space_for(machine);
  double best = 0;
  std::size_t grid = 0;
  for (const Choice& choice : space.choices(true)) {
    for (int micro = 0; micro < static_cast<int>(space.micros.size()); ++micro) {
      best = std::max(best, run_on(machine, space, {choice, micro}).throughput);
      ++grid;
    }
  }
  const Answer answer = search(
      space, {.fast = false},
      [&](const Combination& at, int) { return run_on(machine, space, at); }, predict);
  EXPECT_GT(grid, 100U);
  if (!answer.best) return {};
  return {answer.best->outcome.throughput / best,
          static_cast<double>(answer.trials.size()) / static_cast<double>(grid)};
}

TEST(SimulatedMachines, TheSearchComesWithin5PercentOfTheGridInAQuarterOfItsTrials) {
  for (const Machine& machine : kMachines) {
    const Found found = found_on(machine);
    EXPECT_GE(found.share, 0.95) << machine.name;
    EXPECT_LE(found.trials, 0.25) << machine.name;
    RecordProperty(machine.name,
                   std::to_string(found.share) + " in " + std::to_string(found.trials));
  }
}

// A model that is a third off, in time and memory, in one direction or the other.
TEST(SimulatedMachines, ACrudePredictionDoesNotSpoilIt) {
  for (const Machine& machine : kMachines) {
    for (const double off : {0.67, 1.33}) {
      const Space space = space_for(machine);
      const Found found = found_on(machine, [&](const Combination& at) {
        return Prediction{.bytes = std::llround(gib(machine, space, at) * off),
                          .limit_bytes = std::llround(machine.device),
                          .seconds = seconds(machine, space, at) * off};
      });
      EXPECT_GE(found.share, 0.95) << machine.name << " " << off;
      EXPECT_LE(found.trials, 0.25) << machine.name << " " << off;
    }
  }
}

// Trials that fail, hang or lack memory for no reason that a search could know.
TEST(SimulatedMachines, ItAlwaysAnswers) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const Order order : {Order::guided, Order::grid, Order::random}) {
      const Space space = space_for(kMachines[seed % 3]);
      unsigned state = seed;
      std::size_t measured = 0;
      const Options options{.fast = seed % 2 == 0, .order = order, .most_trials = 30};
      const Answer answer = search(space, options, [&](const Combination& at, int more) {
        EXPECT_GE(more, 0);
        state = state * 1664525 + 1013904223;
        const End ends[] = {End::failed, End::too_long, End::out_of_memory, End::measured};
        const End end = ends[(state >> 16) % 4];
        if (end != End::measured) return Outcome{.end = end};
        const Outcome outcome = run_on(kMachines[0], space, at);
        measured += outcome.end == End::measured ? 1 : 0;
        return outcome;
      });
      EXPECT_EQ(answer.best.has_value(), measured > 0) << seed;
      EXPECT_FALSE(answer.ended.empty());
      EXPECT_LE(answer.trials.size(), 30U);
    }
  }
}

}  // namespace
}  // namespace capstan::tune
