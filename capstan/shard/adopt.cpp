#include "capstan/shard/adopt.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/comm/numbers.h"
#include "capstan/shard/loose_shard.h"

namespace capstan::shard {
namespace {

class Adopter {
 public:
  Adopter(const ModelView& model, const Ground& ground, const comm::MeshGroups& mesh)
      : model_(model), ground_(ground), mesh_(mesh) {
    const std::vector<std::int64_t> constants =
        comm::from_all_ranks(ground.groups.peers, device(), model.constants(), "constants");
    constants_agree_ =
        std::ranges::adjacent_find(constants, std::not_equal_to<>()) == constants.end();
  }

  // Before any unit is adopted: copies of weights on several stages become those of the first. In
  // the order of the ties, which all stages share.
  void share_between_stages() const {
    const Plan& plan = ground_.plan;
    for (int tie = 0; tie < std::ssize(plan.ties); ++tie) {
      for (std::size_t i = 0; i < plan.params.size(); ++i) {
        if (plan.params[i].tie != tie || plan.params[i].numel() == 0) continue;
        check_not_loose(i, plan.ties[static_cast<std::size_t>(tie)]);
        at::Tensor param = model_.params[i];
        if (constants_agree_ && model_.is_constant(i)) continue;
        if (!param.is_contiguous()) param.set_data(param.detach().contiguous());
        ground_.groups.units[static_cast<std::size_t>(plan.places[i].unit)]
            .tied->broadcast(param.detach().view(-1), 0, "shared weights")
            .wait();
      }
    }
  }

  Unit adopt_unit(int index, UnitStates& states) const {
    const auto i = static_cast<std::size_t>(index);
    const UnitSpec& spec = ground_.plan.units[i];
    const Policy& policy = ground_.settings.policy;
    const UnitHomes where = ground_.homes[i];
    const int rank = ground_.groups.units[i].cut->rank();
    std::vector<at::Tensor> members;
    members.reserve(spec.params.size());
    for (const int param : spec.params) members.push_back(whole_param(param));
    if (spec.trainable) {
      states = make_states(spec, members, owned_elems(spec, policy.shards_optimizer(), rank),
                           ground_.settings.states, states_home(where));
    }
    const bool keep_whole = spec.resident || policy.params != Gather::per_use;
    store::Home& shards = ground_.places.params(where.params);
    Unit unit(
        spec, ground_.plan.params, std::move(members),
        UnitMemory{ground_.places.device(), shards.pool(), where.params},
        UnitRole{.rank = rank, .keep_whole = keep_whole, .near_rank = mesh_.place(spec.axes.near)});
    if (!keep_whole) {
      unit.keep_near();
      unit.release();
    }
    if (spec.trainable) bind_params(states, unit, policy.shards_optimizer());
    // No more than a unit's pages in host memory at a time.
    shards.write_back(store::Home::Which::new_memory);
    ground_.places.states(where.states).write_back(store::Home::Which::new_memory);
    return unit;
  }

 private:
  c10::Device device() const { return ground_.places.device().device(); }

  StatesHome states_home(UnitHomes where) const {
    const bool one_copy = where.states == where.params && where.states != store::Placement::nvme;
    return {ground_.places.states(where.states).pool(), where.states != store::Placement::device,
            one_copy};
  }

  void check_not_loose(std::size_t index, const Tie& tie) const {
    if (!model_.is_loose(index)) return;
    throw ConfigError(
        {.what = fmt::format("{}, which stages {} share, was sharded before there was an engine",
                             ground_.plan.params[index].name, fmt::join(tie.stages, ", ")),
         .where = tie.key,
         .fix = "build layers that stages share outside of zero.Init"});
  }

  at::Tensor whole_param(int index) const {
    const auto i = static_cast<std::size_t>(index);
    at::Tensor param = model_.params[i];
    if (model_.is_loose(i)) {
      model_.loose[i]->pin();  // the values of all ranks, equal already
      model_.loose[i]->hand_over();
      if (param.device() != device()) param.set_data(param.detach().to(device()));
      return param;
    }
    const bool constant = constants_agree_ && model_.is_constant(i);
    if (!constant && !param.is_contiguous()) param.set_data(param.detach().contiguous());
    const at::Tensor values = param.detach().view(-1);
    if (param.numel() == 0) return param;
    ground_.groups.peers.broadcast(constant ? values.narrow(0, 0, 1) : values, 0, "initial values")
        .wait();
    return param;
  }

  const ModelView& model_;
  const Ground& ground_;
  const comm::MeshGroups& mesh_;
  bool constants_agree_ = false;  // whether the ranks' parameters of one value are the same ones
};

}  // namespace

Adopted adopt(const ModelView& model, const Ground& ground, const comm::MeshGroups& mesh) {
  const Adopter adopter(model, ground, mesh);
  adopter.share_between_stages();
  Adopted adopted;
  adopted.states.resize(ground.plan.units.size());
  for (int i = static_cast<int>(ground.plan.units.size()) - 1; i >= 0; --i) {
    adopted.units.push_back(adopter.adopt_unit(i, adopted.states[static_cast<std::size_t>(i)]));
  }
  std::ranges::reverse(adopted.units);
  return adopted;
}

}  // namespace capstan::shard
