#include "capstan/engine/forward_only.h"

#include "capstan/base/error.h"

namespace capstan::engine {
namespace {

class NoUpdater final : public Updater {
  void update(shard::ShardedModel& /*model*/, const UpdateScalars& /*scalars*/) override {
    throw ConfigError({.what = "step() was called on an engine without an optimizer",
                       .where = "engine.step()",
                       .fix = "give initialize() an optimizer, or name one in the configuration"});
  }
};

}  // namespace

void make_forward_only(Options& options, Parts& parts) {
  options.optimizer.reset();
  options.schedule.reset();
  options.store.optimizer = {};
  options.precision.master = options.precision.params;  // nothing will be updated
  options.precision.optimizer_state = DType::fp32;
  parts.updater = [](shard::ShardedModel&) { return std::make_unique<NoUpdater>(); };
}

}  // namespace capstan::engine
