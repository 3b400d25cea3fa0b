#include "capstan/shard/policy.h"

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::shard {

Policy policy_for(const Options& options) {
  const ReduceSchedule reduce =
      options.reduce_schedule.value_or(default_reduce_schedule(options.stage));
  switch (options.stage) {
    case 0:
      return {Gather::never, reduce};
    case 1:
    case 2:  // differs from 1 only in the default schedule
      return {Gather::per_step, reduce};
    case 3:
      return {Gather::per_use, reduce};
    default:
      throw ConfigError({.what = fmt::format("stage is {}", options.stage),
                         .where = "shard::Options::stage",
                         .fix = "use 0, 1, 2 or 3"});
  }
}

}  // namespace capstan::shard
