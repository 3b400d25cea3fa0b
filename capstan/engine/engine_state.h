// The objects that an engine is made of: this makes them in order and owns them. C++ programs use
// engine.h; front ends for other languages and tests reach the objects through Engine::inside().
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "capstan/comm/mesh_groups.h"
#include "capstan/comm/world.h"
#include "capstan/engine/access.h"
#include "capstan/engine/backward.h"
#include "capstan/engine/common.h"
#include "capstan/engine/find_nan.h"
#include "capstan/engine/loader.h"
#include "capstan/engine/parts.h"
#include "capstan/engine/saver.h"
#include "capstan/engine/states_aside.h"
#include "capstan/engine/step.h"
#include "capstan/optim/cpu/worker_pool.h"
#include "capstan/shard/hooks.h"

namespace capstan::engine {

// Owns:    everything below; it goes in the opposite order.
// Threads: one caller at a time.
// Ranks:   the constructor is collective.
class EngineState {
 public:
  // Called once the options are known to be good.
  using ViewMaker = std::function<shard::ModelView(const Options&)>;
  EngineState(const ViewMaker& view, Options given, Parts parts);
  ~EngineState();
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  shard::ShardedModel& sharded() { return *sharded_; }
  shard::Hooks& hooks() { return *hooks_; }
  Backward& backward() { return *backward_; }
  Saver& saver() { return *saver_; }
  StatesAside& aside() { return *aside_; }
  Loader& loader() { return *loader_; }
  Step& step() { return *step_; }
  Access& access() { return *access_; }
  Monitoring& monitoring() { return *monitoring_; }
  comm::MeshGroups& mesh() { return *mesh_; }
  comm::World* world() { return world_.get(); }  // null where we were given a group

  Options options;
  RunState run;

 private:
  void join(const Parts& parts, c10::Device device);
  void shard_model(const shard::ModelView& view);
  void make_updater(const Parts& parts);
  void make_rates(const Parts& parts);
  void begin_trace();

  ModelExtras extras_;
  NullLogger silence_;
  std::unique_ptr<comm::World> world_;
  comm::Group* group_ = nullptr;  // all ranks
  std::unique_ptr<comm::MeshGroups> mesh_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<Monitoring> monitoring_;
  std::unique_ptr<StepTrace> trace_;  // null: nothing is drawn
  std::unique_ptr<Diary> diary_;
  Rates rates_;
  GradScale scale_;
  std::unique_ptr<GradGate> gate_;  // only where gradients are in GPU memory
  std::unique_ptr<shard::ShardedModel> sharded_;
  std::unique_ptr<optim::WorkerPool> workers_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<EarlyStep> early_;
  std::unique_ptr<FindNan> find_nan_;  // null: nobody asked
  std::unique_ptr<shard::Hooks> hooks_;
  std::unique_ptr<Backward> backward_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<StatesAside> aside_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<Step> step_;
};

}  // namespace capstan::engine
