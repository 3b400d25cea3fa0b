#include "capstan/pipeline/schedules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/pipeline/deepspeed_order.h"
#include "capstan/pipeline/transfers.h"

namespace capstan::pipeline {
namespace {

using Work = std::vector<Instruction>;  // one stage's forwards and backwards

constexpr std::array kNames = {
    std::pair(Kind::gpipe, "gpipe"),
    std::pair(Kind::one_f_one_b, "1f1b"),
    std::pair(Kind::interleaved, "interleaved"),
    std::pair(Kind::zb_h1, "zb-h1"),
    std::pair(Kind::deepspeed, "deepspeed"),
    std::pair(Kind::inference, "inference"),
};

constexpr int kMostUnits = 1 << 24;  // forwards of all stages: some gigabytes of instructions

// The k-th forward or backward of a stage: groups of as many micro-batches as there are stages pass
// chunk after chunk, backwards from the last to the first.
Instruction nth(const Shape& shape, Op op, int k) {
  const int group = k / shape.parts();
  const int i = k % shape.parts();
  const int chunk = i / shape.stages;
  return {op, group * shape.stages + i % shape.stages,
          op == Op::forward ? chunk : shape.chunks - 1 - chunk};
}

// So many forwards, then a forward and a backward in turns, then the backwards that are left.
Work in_turns(const Shape& shape, int warm_up) {
  const int count = shape.micro_batches * shape.chunks;
  const auto unit = [&](Op op, int k) {
    return shape.chunks == 1 ? Instruction{op, k} : nth(shape, op, k);
  };
  Work work;
  for (int k = 0; k < count + warm_up; ++k) {
    if (k < count) work.push_back(unit(Op::forward, k));
    if (k >= warm_up) work.push_back(unit(Op::backward, k - warm_up));
  }
  return work;
}

int warm_up(Kind kind, const Shape& shape, int stage) {
  const int count = shape.micro_batches * shape.chunks;
  if (kind == Kind::gpipe) return count - 1;
  const int behind = shape.stages - stage - 1;
  if (shape.chunks == 1) return std::min(behind, count);
  return std::min(2 * behind + (shape.chunks - 1) * shape.stages, count);
}

// Weights wait as long as that costs no more activations than the first stage holds.
Work zb_h1(const Shape& shape, int stage) {
  Work work;
  const int ahead = std::min(shape.stages - stage, shape.micro_batches);
  for (int i = 0; i < ahead; ++i) work.push_back({Op::forward, i});
  for (int i = 0; i < shape.micro_batches; ++i) {
    work.push_back({Op::backward_inputs, i});
    if (i >= stage) work.push_back({Op::backward_weights, i - stage});
    if (ahead + i < shape.micro_batches) work.push_back({Op::forward, ahead + i});
  }
  for (int i = std::max(0, shape.micro_batches - stage); i < shape.micro_batches; ++i) {
    work.push_back({Op::backward_weights, i});
  }
  return work;
}

// A micro-batch after the other through all chunks of a group.
Work forwards(const Shape& shape) {
  Work work;
  for (int first = 0; first < shape.micro_batches; first += shape.stages) {
    const int end = std::min(first + shape.stages, shape.micro_batches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int i = first; i < end; ++i) work.push_back({Op::forward, i, chunk});
    }
  }
  return work;
}

Work work_of(Kind kind, const Shape& shape, int stage) {
  if (kind == Kind::inference) return forwards(shape);
  if (kind == Kind::zb_h1) return zb_h1(shape, stage);
  return in_turns(shape, warm_up(kind, shape, stage));
}

Schedule deepspeed(const Shape& shape) {
  Schedule schedule = {.shape = shape};
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<Instruction>& list = schedule.stages.emplace_back();
    for (const auto& step : deepspeed_train_steps(shape, stage)) {
      list.insert(list.end(), step.begin(), step.end());
    }
  }
  return schedule;
}

std::string told(const Shape& shape) {
  return counted(shape.stages, "stage") + ", " + std::to_string(shape.micro_batches) +
         (shape.micro_batches == 1 ? " micro-batch and " : " micro-batches and ") +
         counted(shape.chunks, "chunk") + " per stage";
}

void check_shape(Kind kind, const Shape& shape) {
  const std::string where = "pipeline schedule " + std::string(to_string(kind));
  if (shape.stages < 1 || shape.micro_batches < 1 || shape.chunks < 1) {
    throw ConfigError({.what = told(shape), .where = where, .fix = "use at least one of each"});
  }
  const double units = 1.0 * shape.stages * shape.chunks * shape.micro_batches;
  if (units > kMostUnits) {
    throw ConfigError({.what = told(shape) + " are more than can be planned",
                       .where = where,
                       .fix = "use fewer: their product is at most " + std::to_string(kMostUnits)});
  }
  if (shape.chunks > 1 && kind != Kind::interleaved && kind != Kind::inference) {
    throw ConfigError({.what = counted(shape.chunks, "chunk") +
                               " per stage, but this schedule has one part of the model per stage",
                       .where = where,
                       .fix = "use the schedule interleaved, or one chunk"});
  }
  const int rest = shape.micro_batches % shape.stages;
  if (kind == Kind::interleaved && shape.chunks > 1 && rest != 0) {
    const int below = shape.micro_batches - rest;
    throw ConfigError(
        {.what = std::to_string(shape.micro_batches) + " micro-batches are not a multiple of " +
                 std::to_string(shape.stages) + " stages",
         .where = where,
         .fix = "use " + (below > 0 ? std::to_string(below) + " or " : "") +
                std::to_string(below + shape.stages) + " micro-batches, or the schedule 1f1b"});
  }
}

}  // namespace

std::string_view to_string(Kind kind) {
  for (const auto& [known, name] : kNames) {
    if (known == kind) return name;
  }
  return "";
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  names.reserve(kNames.size());
  for (const auto& [kind, name] : kNames) names.emplace_back(name);
  return names;
}

Kind kind_named(std::string_view name) {
  for (const auto& [kind, known] : kNames) {
    if (name == known) return kind;
  }
  const std::vector<std::string> names = kind_names();
  const std::string near = nearest_name(name, names);
  std::string all;
  for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
  throw ConfigError(
      {.what = "there is no pipeline schedule \"" + std::string(name) + "\"",
       .where = "pipeline schedule",
       .fix = near.empty() ? "choose one of: " + all : "did you mean \"" + near + "\"?"});
}

Schedule make_schedule(Kind kind, const Shape& shape) {
  check_shape(kind, shape);
  if (kind == Kind::deepspeed) return deepspeed(shape);
  std::vector<Work> work;
  work.reserve(shape.stages);
  for (int stage = 0; stage < shape.stages; ++stage) work.push_back(work_of(kind, shape, stage));
  return with_transfers(shape, kind != Kind::inference, work);
}

}  // namespace capstan::pipeline
