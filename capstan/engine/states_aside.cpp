#include "capstan/engine/states_aside.h"

namespace capstan::engine {

void StatesAside::put(const shard::AsideKinds& kinds) {
  shard::ShardedModel& sharded = common_.sharded;
  saver_.before_change();
  std::vector<at::Tensor> moments;
  for (const StateColumn& column : common_.updater.state_columns(sharded)) {
    for (const StateColumn::Part& part : column.parts) {
      if (!sharded.states(part.unit).on_host) moments.push_back(part.values);
    }
  }
  sharded.put_aside(kinds, moments);
}

}  // namespace capstan::engine
