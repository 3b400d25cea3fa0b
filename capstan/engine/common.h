// What the objects of one engine work with.
#pragma once

#include "capstan/comm/mesh_groups.h"
#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/monitoring.h"
#include "capstan/engine/diary.h"
#include "capstan/engine/options.h"
#include "capstan/engine/run_log.h"
#include "capstan/engine/run_state.h"
#include "capstan/engine/updater.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

// All of it belongs to EngineState and outlives those who are handed this.
struct Common {
  const Options& options;
  comm::Group& group;  // all ranks
  comm::MeshGroups& mesh;
  shard::ShardedModel& sharded;
  Updater& updater;
  const ModelExtras& extras;
  RunLog& log;
  Monitoring& monitoring;
  Diary& diary;
  RunState& run;
  GradScale& scale;

  at::Device device() const { return sharded.device(); }
};

}  // namespace capstan::engine
