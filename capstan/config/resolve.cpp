#include "capstan/config/resolve.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/text.h"
#include "capstan/config/apply.h"
#include "capstan/config/batch.h"
#include "capstan/config/explain.h"
#include "capstan/config/foreign_file.h"
#include "capstan/config/rules.h"
#include "capstan/config/walk.h"

namespace capstan::config {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
// Sizes of axes whose ranks share a model and its data.
constexpr const char* kStages = "pipeline.stages";
constexpr std::array kSharing = {kStages, "sequence_parallel_size", "tensor_parallel.autotp_size"};

void append_infos(std::vector<ErrorInfo>& to, std::vector<ErrorInfo> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

BatchNumber batch_number(const Table& table, const char* path) {
  return {.value = table.maybe_integer(path), .origin = table.find(path)->origin};
}

void put_batch_number(Table& table, const char* path, const BatchNumber& number) {
  Entry entry = *table.find(path);
  const bool was_auto = entry.origin.kind == OriginKind::automatic && entry.value.is_null();
  entry.value = json::Value(number.value.value_or(1));
  entry.origin = number.origin;
  if (was_auto) entry.origin = {OriginKind::automatic, describe(number.origin)};
  table.put(std::move(entry));
}

// Whether something was said about this key already.
bool told(const std::vector<ErrorInfo>& problems, const char* path) {
  const std::string place = fmt::format("({})", path);
  return std::any_of(problems.begin(), problems.end(),
                     [&](const ErrorInfo& problem) { return problem.where.ends_with(place); });
}

// Ranks that see different data: those that share a model see the same, and the batch counts them
// once.
BatchNumber data_ranks(const Table& table, const Context& context,
                       std::vector<ErrorInfo>& problems) {
  if (!context.world_size) return {};
  const std::int64_t all = *context.world_size;
  std::int64_t sharing = 1;
  std::vector<std::string> sizes;  // "2 (sequence_parallel_size)"
  const char* wrong = nullptr;     // the first axis that the ranks left by those before cannot form
  for (const char* path : kSharing) {
    const std::int64_t given = table.maybe_integer(path).value_or(1);
    const std::int64_t size = std::clamp<std::int64_t>(given, 1, all + 1);
    if (size == 1 || wrong != nullptr) continue;
    sizes.push_back(fmt::format("{} ({})", given, path));
    sharing *= size;
    if (all % sharing != 0) wrong = path;
  }
  if (sharing == 1) return {.value = all, .origin = context.world_size_origin};
  if (wrong != nullptr) {
    const std::string& place = table.find(wrong)->origin.detail;
    problems.push_back(
        {.what = fmt::format("{} ({}) cannot form groups of {}", counted(all, "rank"),
                             describe(context.world_size_origin), fmt::join(sizes, " x ")),
         .where = fmt::format("{} ({})", place, wrong),
         .fix = "use a size that divides the number of ranks"});
  }
  return {.value = std::max<std::int64_t>(1, all / sharing),
          .origin = {OriginKind::derived,
                     fmt::format("{} / {}", counted(all, "rank"), fmt::join(sizes, " / "))}};
}

// A model that is in stages says how many there are.
void take_stages(Table& table, const Context& context, std::vector<ErrorInfo>& problems) {
  if (!context.stages) return;
  Entry entry = *table.find(kStages);
  const std::int64_t given = table.maybe_integer(kStages).value_or(*context.stages);
  if (given != *context.stages) {
    problems.push_back({.what = fmt::format("the configuration has {}, but the model has {}",
                                            counted(given, "stage"), *context.stages),
                        .where = fmt::format("{} ({})", entry.origin.detail, kStages),
                        .fix = "write \"auto\", or cut the model into as many"});
  }
  entry.value = json::Value(static_cast<std::int64_t>(*context.stages));
  if (!table.given(kStages)) entry.origin = {OriginKind::environment, "the model"};
  table.put(std::move(entry));
}

// Completes the three batch keys of the table, over ranks that see different data.
Batch solve_batch(Table& table, BatchNumber ranks, const std::string& source, bool required) {
  Batch batch{.train = batch_number(table, kTrain),
              .micro = batch_number(table, kMicro),
              .accumulation = batch_number(table, kAccumulation),
              .ranks = std::move(ranks),
              .required = required};
  batch = complete_batch(std::move(batch), source);
  put_batch_number(table, kTrain, batch.train);
  put_batch_number(table, kMicro, batch.micro);
  put_batch_number(table, kAccumulation, batch.accumulation);
  return batch;
}

void check_data_parallel_size(const Table& table, const Batch& batch, const std::string& source,
                              std::vector<ErrorInfo>& problems) {
  const auto size = table.maybe_integer("data_parallel_size");
  const std::int64_t ranks = batch.ranks.value.value_or(1);
  if (!size || *size == ranks) return;
  problems.push_back(
      {.what = fmt::format("data_parallel_size is {}, but the run has {} ({})", *size,
                           counted(ranks, "data-parallel rank"), describe(batch.ranks.origin)),
       .where = fmt::format("{} (data_parallel_size)", source),
       .fix = "remove the key, or start as many ranks as it needs"});
}

}  // namespace

Outcome check(const json::Document& document, const Context& context) {
  if (auto foreign = recognise_foreign_file(document)) return {.problems = {*std::move(foreign)}};
  Walked walked = walk(document, context);
  Outcome outcome{.problems = std::move(walked.problems), .warnings = std::move(walked.warnings)};
  Table& table = walked.table;
  derive_values(table, context);
  take_stages(table, context, outcome.problems);
  BatchNumber ranks = data_ranks(table, context, outcome.problems);
  RuleFindings findings = check_rules(
      table, document.source,
      context.world_size ? std::optional(static_cast<int>(*ranks.value)) : std::nullopt);
  append_infos(outcome.problems, std::move(findings.problems));
  append_infos(outcome.warnings, std::move(findings.warnings));
  const bool required =
      context.trains && !told(outcome.problems, kTrain) && !told(outcome.problems, kMicro);
  Batch batch = solve_batch(table, std::move(ranks), document.source, required);
  append_infos(outcome.problems, std::move(batch.problems));
  append_infos(outcome.warnings, std::move(batch.warnings));
  check_data_parallel_size(table, batch, document.source, outcome.problems);
  if (!outcome.problems.empty()) return outcome;

  Resolved resolved{.engine = to_engine(table),
                    .data = to_data(table),
                    .tune = to_tune(table),
                    .curriculum = to_curriculum(table),
                    .layer_drop = to_layer_drop(table)};
  resolved.table = std::move(table);
  resolved.world_size = static_cast<int>(batch.ranks.value.value_or(1));
  resolved.world_size_origin = batch.ranks.origin;
  resolved.warnings = outcome.warnings;
  if (resolved.table.flag("dump_state")) resolved.engine.profile.state_dump = explain(resolved);
  if (!resolved.engine.monitor.metrics.empty()) {
    resolved.engine.monitor.config = shown_values(resolved);
  }
  outcome.resolved = std::move(resolved);
  return outcome;
}

Resolved resolve(const json::Document& document, const Context& context) {
  Outcome outcome = check(document, context);
  if (!outcome.resolved) throw ConfigError(join_problems(outcome.problems, document.source));
  return *std::move(outcome.resolved);
}

ErrorInfo join_problems(const std::vector<ErrorInfo>& problems, const std::string& source) {
  if (problems.size() == 1) return problems.front();
  constexpr std::size_t kMostShown = 100;
  std::string what = fmt::format("{} problems in {}", problems.size(), source);
  for (std::size_t i = 0; i < std::min(problems.size(), kMostShown); ++i) {
    const ErrorInfo& problem = problems[i];
    what += fmt::format("\n  - {}\n    where: {}", problem.what, problem.where);
    if (!problem.fix.empty()) what += fmt::format("\n    fix:   {}", problem.fix);
  }
  if (problems.size() > kMostShown) {
    what += fmt::format("\n  ... and {} more", problems.size() - kMostShown);
  }
  return {.what = std::move(what),
          .where = source,
          .fix = fmt::format("correct the {} problems above, then run `capstan config check` again",
                             std::min(problems.size(), kMostShown))};
}

}  // namespace capstan::config
