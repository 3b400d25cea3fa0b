#include "capstan/config/batch.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

namespace capstan::config {
namespace {

std::int64_t value(const BatchNumber& number) { return number.value.value_or(0); }

std::string with_origin(std::string_view name, const BatchNumber& number) {
  return fmt::format("{} = {} ({})", name, value(number), describe(number.origin));
}

void derive(BatchNumber& number, std::int64_t found, std::string how) {
  number.value = found;
  number.origin = {.kind = OriginKind::derived, .detail = std::move(how)};
}

void assume(BatchNumber& number, std::string why) {
  number.value = 1;
  number.origin = {.kind = OriginKind::fallback, .detail = std::move(why)};
}

// Refuses products that no batch can have, so that the arithmetic never overflows.
bool multiply(std::int64_t a, std::int64_t b, std::int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

void conflict(Batch& batch, const std::string& source, std::string fix) {
  std::int64_t pair = 0;
  std::int64_t product = 0;
  const bool fits = multiply(value(batch.micro), value(batch.accumulation), pair) &&
                    multiply(pair, value(batch.ranks), product);
  batch.problems.push_back(
      {.what = fmt::format("train_batch_size is {}, but {} (micro-batch) x {} (accumulation) x {} "
                           "(data-parallel ranks) "
                           "= {}\n    {}\n    {}\n    {}\n    {}",
                           value(batch.train), value(batch.micro), value(batch.accumulation),
                           value(batch.ranks), fits ? fmt::to_string(product) : "more than 2^63",
                           with_origin("train_batch_size", batch.train),
                           with_origin("train_micro_batch_size_per_gpu", batch.micro),
                           with_origin("gradient_accumulation_steps", batch.accumulation),
                           with_origin("data-parallel ranks", batch.ranks)),
       .where = fmt::format("{} (train_batch_size)", source),
       .fix = std::move(fix)});
}

void too_large(Batch& batch, const std::string& source) {
  batch.problems.push_back(
      {.what =
           fmt::format("the batch is too large: {} (micro-batch) x {} (accumulation) x {} "
                       "(data-parallel ranks) is more than 2^63 samples\n    {}\n    {}\n    {}",
                       value(batch.micro), value(batch.accumulation), value(batch.ranks),
                       with_origin("train_micro_batch_size_per_gpu", batch.micro),
                       with_origin("gradient_accumulation_steps", batch.accumulation),
                       with_origin("data-parallel ranks", batch.ranks)),
       .where = fmt::format("{} (train_micro_batch_size_per_gpu)", source),
       .fix = "lower train_micro_batch_size_per_gpu or gradient_accumulation_steps"});
}

// "auto" that nobody has filled in is 1, with a word; a batch that nobody speaks of is a problem.
void find_missing(Batch& batch, const std::string& source) {
  const std::string where = fmt::format("{} (train_micro_batch_size_per_gpu)", source);
  const std::string fix = "set train_micro_batch_size_per_gpu or train_batch_size to a number";
  const bool is_auto = batch.train.origin.kind == OriginKind::automatic ||
                       batch.micro.origin.kind == OriginKind::automatic;
  if (is_auto) {
    batch.warnings.push_back(
        {.what = "the batch size is \"auto\", which only the Trainer and Accelerate fill in, so "
                 "each rank takes one sample per forward",
         .where = where,
         .fix = fix});
  } else {
    batch.problems.push_back({.what = "the batch size is missing", .where = where, .fix = fix});
  }
}

// The nearest train batch that the other numbers allow, as advice.
std::string nearest_train(const Batch& batch, std::int64_t unit) {
  const std::int64_t count = std::max<std::int64_t>(1, value(batch.train) / unit);
  std::int64_t product = 0;
  if (!multiply(count, unit, product))
    return "leave one of the three keys out so that it is computed";
  return fmt::format("set train_batch_size to a multiple of {}, such as {}", unit, product);
}

// Finds `unknown` from train / (known x ranks).
void divide(Batch& batch, BatchNumber& unknown, const BatchNumber& known,
            const std::string& source) {
  std::int64_t unit = 0;
  if (!multiply(value(known), value(batch.ranks), unit) || value(batch.train) % unit != 0) {
    derive(unknown, std::max<std::int64_t>(1, unit > 0 ? value(batch.train) / unit : 1),
           fmt::format("{} / ({} x {}), rounded down", value(batch.train), value(known),
                       value(batch.ranks)));
    conflict(
        batch, source,
        unit > 0 ? nearest_train(batch, unit) : "give numbers that multiply to less than 2^63");
    return;
  }
  derive(unknown, value(batch.train) / unit,
         fmt::format("{} / ({} x {})", value(batch.train), value(known), value(batch.ranks)));
}

void find_ranks(Batch& batch) {
  if (batch.ranks.value) return;
  std::int64_t pair = 0;
  const bool all = batch.train.value && batch.micro.value && batch.accumulation.value;
  if (all && multiply(*batch.micro.value, *batch.accumulation.value, pair) &&
      *batch.train.value % pair == 0 &&
      *batch.train.value / pair <= std::numeric_limits<int>::max()) {
    derive(batch.ranks, *batch.train.value / pair,
           fmt::format("{} / ({} x {})", *batch.train.value, *batch.micro.value,
                       *batch.accumulation.value));
  } else {
    assume(batch.ranks, "one rank, since no number was given");
  }
}

}  // namespace

Batch complete_batch(Batch batch, const std::string& source) {
  find_ranks(batch);
  const std::string by_default = "not set in the file";
  if (batch.train.value) {
    if (batch.micro.value && batch.accumulation.value) {
      std::int64_t pair = 0;
      std::int64_t product = 0;
      if (!multiply(value(batch.micro), value(batch.accumulation), pair) ||
          !multiply(pair, value(batch.ranks), product) || product != value(batch.train)) {
        conflict(batch, source,
                 "change one of them, or leave one of the three keys out so that it is computed");
      }
    } else if (batch.micro.value) {
      divide(batch, batch.accumulation, batch.micro, source);
    } else {
      if (!batch.accumulation.value) assume(batch.accumulation, by_default);
      divide(batch, batch.micro, batch.accumulation, source);
    }
    return batch;
  }
  if (batch.required && !batch.micro.value) find_missing(batch, source);
  if (!batch.micro.value) assume(batch.micro, by_default);
  if (!batch.accumulation.value) assume(batch.accumulation, by_default);
  std::int64_t pair = 0;
  std::int64_t product = 0;
  if (!multiply(value(batch.micro), value(batch.accumulation), pair) ||
      !multiply(pair, value(batch.ranks), product)) {
    too_large(batch, source);
    return batch;
  }
  derive(batch.train, product,
         fmt::format("{} x {} x {}", value(batch.micro), value(batch.accumulation),
                     value(batch.ranks)));
  return batch;
}

}  // namespace capstan::config
