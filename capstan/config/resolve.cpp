#include "capstan/config/resolve.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

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

// Data-parallel ranks; no value where nobody knows yet how many.
BatchNumber data_ranks(const Table& table, const Context& context,
                       std::vector<ErrorInfo>& problems) {
  if (!context.ranks) {
    if (!context.world_size) return {};
    return {.value = *context.world_size, .origin = context.world_size_origin};
  }
  const Entry& size = *table.find("tensor_parallel.autotp_size");
  const std::int64_t tensor = std::max<std::int64_t>(1, *size.value.integer());
  if (tensor == 1) return {.value = *context.ranks, .origin = context.world_size_origin};
  if (*context.ranks % tensor != 0) {
    problems.push_back(
        {.what = fmt::format("{} cannot form groups of {} that split every layer",
                             counted(*context.ranks, "rank"), tensor),
         .where = fmt::format("{} (tensor_parallel.autotp_size)", describe(size.origin)),
         .fix = fmt::format("start a multiple of {}, or choose a size that divides {}",
                            counted(tensor, "rank"), *context.ranks)});
    return {};
  }
  return {.value = *context.ranks / tensor,
          .origin = {OriginKind::environment,
                     fmt::format("{} with {} per model", counted(*context.ranks, "rank"), tensor)}};
}

// Completes the three batch keys of the table; the result also holds the number of ranks.
Batch solve_batch(Table& table, const BatchNumber& ranks, const std::string& source,
                  bool required) {
  Batch batch{.train = batch_number(table, kTrain),
              .micro = batch_number(table, kMicro),
              .accumulation = batch_number(table, kAccumulation),
              .ranks = ranks,
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
       .fix = "remove the key, or start that many ranks"});
}

}  // namespace

Outcome check(const json::Document& document, const Context& context) {
  if (auto foreign = recognise_foreign_file(document)) return {.problems = {*std::move(foreign)}};
  Walked walked = walk(document, context);
  Outcome outcome{.problems = std::move(walked.problems), .warnings = std::move(walked.warnings)};
  Table& table = walked.table;
  derive_values(table, context.hidden_size);
  const BatchNumber ranks = data_ranks(table, context, outcome.problems);
  std::optional<int> known;
  if (ranks.value) known = static_cast<int>(*ranks.value);
  RuleFindings findings = check_rules(table, document.source, known);
  append_infos(outcome.problems, std::move(findings.problems));
  append_infos(outcome.warnings, std::move(findings.warnings));
  const bool required =
      context.trains && !told(outcome.problems, kTrain) && !told(outcome.problems, kMicro);
  Batch batch = solve_batch(table, ranks, document.source, required);
  append_infos(outcome.problems, std::move(batch.problems));
  append_infos(outcome.warnings, std::move(batch.warnings));
  check_data_parallel_size(table, batch, document.source, outcome.problems);
  if (!outcome.problems.empty()) return outcome;

  Resolved resolved{.engine = to_engine(table), .data = to_data(table)};
  resolved.table = std::move(table);
  resolved.world_size = static_cast<int>(batch.ranks.value.value_or(1));
  resolved.world_size_origin = batch.ranks.origin;
  resolved.warnings = outcome.warnings;
  if (resolved.table.flag("dump_state")) resolved.engine.profile.state_dump = explain(resolved);
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
