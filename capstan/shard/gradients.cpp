#include "capstan/shard/gradients.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/shard/torch_dtype.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {

Gradients::Gradients(const Ground& ground, Updates& updates, GradWatcher* watcher)
    : ground_(ground),
      updates_(updates),
      watcher_(watcher),
      reducer_(ground.plan, ground.groups, ground.places.device(), ground.settings.reduce, this) {
  store::HostTraffic* const traffic = ground.places.traffic();
  if (traffic == nullptr) return;
  store::SumWatcher& self = *this;
  host_ = std::make_unique<store::HostSums>(static_cast<int>(ground.plan.units.size()),
                                            torch_dtype(ground.settings.reduce.accum), *traffic,
                                            ground.places.host(), self);
}

bool Gradients::takes(int unit) const {
  return ground_.homes[static_cast<std::size_t>(unit)].gradients() != store::Placement::device;
}

void Gradients::take(int unit, at::Tensor sum) {
  host_->behind(unit, std::move(sum), ground_.plan.units[static_cast<std::size_t>(unit)].name);
}

void Gradients::leaves(int unit, const at::Tensor& sum, bool alone) {
  if (watcher_ != nullptr) watcher_->leaves(unit, sum, alone);
}

void Gradients::complete(int unit, store::Arrival arrival) {
  updates_.gradient_complete(unit, std::move(arrival));
}

void Gradients::changes(int unit) { updates_.gradient_changes(unit); }

void Gradients::check_all_used() const {
  if (ground_.settings.unused != UnusedParameters::error) return;
  std::vector<std::string> names;
  for (const int index : reducer_.unused_params()) {
    names.push_back(ground_.plan.params[static_cast<std::size_t>(index)].name);
  }
  if (names.empty()) return;
  throw ConfigError(
      {.what =
           fmt::format("{} got no gradient: {}", counted(std::ssize(names), "trainable parameter"),
                       fmt::join(names, ", ")),
       .where = fmt::format("step on rank {}", ground_.groups.all.rank()),
       .fix = fmt::format("freeze them (requires_grad = false), use them in the loss, or allow "
                          "unused parameters ({})",
                          ground_.settings.names("shard.unused_parameters"))});
}

void Gradients::finish() {
  check_all_used();
  reducer_.finish();
  if (host_ != nullptr) host_->settle();
}

const at::Tensor& Gradients::shard(int unit) const {
  return takes(unit) ? host_->take(unit) : reducer_.sum(unit);
}

at::Tensor Gradients::owned(int unit) {
  const at::Tensor& mine = shard(unit);
  comm::Group& cut = *ground_.groups.units[static_cast<std::size_t>(unit)].cut;
  if (ground_.settings.policy.shards_optimizer() || cut.size() == 1) return mine;
  const UnitSpec& spec = ground_.plan.units[static_cast<std::size_t>(unit)];
  at::Tensor whole = store::new_tensor(ground_.places.device(), spec.layout.padded_elems(),
                                       mine.scalar_type(), store::MemoryKind::gradients);
  cut.all_gather(whole, mine, spec.name).wait();
  return whole;
}

void Gradients::clear() {
  reducer_.clear();
  if (host_ != nullptr) host_->clear();
}

}  // namespace capstan::shard
