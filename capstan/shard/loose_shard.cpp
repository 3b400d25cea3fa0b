#include "capstan/shard/loose_shard.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "capstan/shard/access.h"
#include "capstan/shard/placeholder.h"

namespace capstan::shard {
namespace {

// Ranges of `elems` elements, the last ones shorter.
std::vector<layout::ElemRange> even_ranges(std::int64_t numel, std::int64_t elems, int ranks) {
  std::vector<layout::ElemRange> ranges;
  ranges.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    ranges.push_back({std::min(elems * rank, numel), std::min(elems * (rank + 1), numel)});
  }
  return ranges;
}

// Of every peer; several may have the same.
std::vector<layout::ElemRange> ranges_of_slot(const layout::Mesh& mesh, const UnitSpec& spec,
                                              std::size_t slot, const std::vector<int>& peers) {
  const layout::ElemRange all = spec.layout.slots()[slot];
  std::vector<layout::ElemRange> ranges;
  for (const int rank : peers) {
    const layout::ElemRange shard = spec.layout.shard(mesh.place(spec.axes.cut, rank));
    const layout::ElemRange both = layout::intersect(shard, all);
    const bool any = both.size() > 0;
    ranges.push_back(any ? layout::ElemRange{both.begin - all.begin, both.end - all.begin}
                         : layout::ElemRange{});
  }
  return ranges;
}

}  // namespace

LooseShard::LooseShard(const at::Tensor& param, std::string name, LooseGroup group)
    : param_(param.getIntrusivePtr()),
      name_(std::move(name)),
      group_(std::move(group)),
      sizes_(param.sizes().vec()),
      placeholder_(make_placeholder(name_, param.options())) {
  const at::NoGradGuard no_grad;
  at::Tensor whole = param.detach().contiguous();
  broadcast(whole, 0);
  const int ranks = group_.ranks->size();
  const std::int64_t elems = (whole.numel() + ranks - 1) / ranks;
  ranges_ = even_ranges(whole.numel(), elems, ranks);
  part_ = at::empty({elems}, whole.options());
  const std::int64_t mine = ranges_[static_cast<std::size_t>(group_.ranks->rank())].size();
  part_.narrow(0, mine, elems - mine).zero_();
  keep(whole);
  at::Tensor(param).set_data(placeholder_);
}

LooseShard::LooseShard(const at::Tensor& param, std::string name, LooseGroup group, Left left)
    : param_(param.getIntrusivePtr()),
      name_(std::move(name)),
      group_(std::move(group)),
      sizes_(std::move(left.sizes)),
      part_(std::move(left.part)),
      ranges_(std::move(left.ranges)),
      placeholder_(std::move(left.placeholder)) {}

at::Tensor LooseShard::param() const {
  auto alive = param_.lock();
  assert(alive);  // the parameter owns this
  return at::Tensor(std::move(alive));
}

std::int64_t LooseShard::numel() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{1}, std::multiplies<>());
}

void LooseShard::broadcast(const at::Tensor& whole, int root) {
  if (whole.numel() == 0 || group_.ranks->size() == 1) return;
  const at::Tensor flat = whole.view(-1).to(group_.travel);  // itself where it is there already
  group_.ranks->broadcast(flat, root, name_).wait();
  if (flat.device() != whole.device()) whole.view(-1).copy_(flat);
}

void LooseShard::keep(const at::Tensor& whole) {
  const layout::ElemRange mine = ranges_[static_cast<std::size_t>(group_.ranks->rank())];
  if (!part_.defined()) part_ = at::zeros({mine.size()}, whole.options());
  part_.narrow(0, 0, mine.size()).copy_(whole.reshape({-1}).narrow(0, mine.begin, mine.size()));
}

// Every rank sends as much as the one that has most.
at::Tensor LooseShard::gather() const {
  const auto ranks = static_cast<std::int64_t>(ranges_.size());
  if (ranks == 1) return part_.narrow(0, 0, numel()).clone();
  std::int64_t most = 0;
  for (const layout::ElemRange& range : ranges_) most = std::max(most, range.size());
  at::Tensor mine = part_;
  if (part_.numel() != most) {
    mine = at::zeros({most}, part_.options());
    mine.narrow(0, 0, part_.numel()).copy_(part_);
  }
  const at::Tensor all = at::empty({most * ranks}, part_.options().device(group_.travel));
  if (most > 0) group_.ranks->all_gather(all, mine.to(group_.travel), name_).wait();
  const auto elems = [&](std::int64_t rank) { return ranges_[static_cast<std::size_t>(rank)]; };
  bool in_place = true;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    in_place = in_place && (elems(rank).size() == 0 || elems(rank).begin == rank * most);
  }
  if (in_place) return all.narrow(0, 0, numel());
  at::Tensor flat = at::empty({numel()}, all.options());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t size = elems(rank).size();
    if (size > 0) flat.narrow(0, elems(rank).begin, size).copy_(all.narrow(0, rank * most, size));
  }
  return flat;
}

void LooseShard::pin() {
  if (pins_++ > 0) return;
  const at::NoGradGuard no_grad;
  param().set_data(gather().to(placeholder_.device()).view(sizes_));
}

void LooseShard::unpin() {
  assert(pins_ > 0);
  if (--pins_ == 0 && part_.defined()) param().set_data(placeholder_);
}

void LooseShard::take_from(int root) {
  assert(pins_ > 0);
  ++changes_;
  const at::NoGradGuard no_grad;
  at::Tensor whole = param().detach().contiguous();
  broadcast(whole, root);
  if (!whole.is_alias_of(param())) param().set_data(whole);
  keep(whole);
}

void LooseShard::cast(at::ScalarType dtype) {
  if (part_.scalar_type() == dtype) return;
  const at::NoGradGuard no_grad;
  part_ = part_.to(dtype);
  placeholder_ = make_placeholder(name_, placeholder_.options().dtype(dtype));
  param().set_data(pins_ > 0 ? param().detach().to(dtype) : placeholder_);
}

std::vector<std::shared_ptr<LooseShard>> leave_shards(ShardedModel& model,
                                                      const std::shared_ptr<comm::Group>& group) {
  const Plan& plan = model.plan();
  std::vector<std::shared_ptr<LooseShard>> left(plan.params.size());
  if (model.settings().policy.params != Gather::per_use) return left;
  const at::NoGradGuard no_grad;
  const comm::MeshGroups& mesh = model.mesh();
  const std::vector<int> peers = mesh.mesh().group(layout::kPeerAxes, mesh.all().rank());
  model.settle_updates();
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    Unit& unit = model.unit(static_cast<int>(u));
    if (unit.state() == UnitState::whole && unit.keeps_whole()) continue;
    // On all ranks alike, wherever each of them was when its engine went.
    if (unit.state() == UnitState::whole) unit.release(/*lent=*/true);
    const bool on_disk = unit.placement() == store::Placement::nvme;
    for (std::size_t slot = 0; slot < plan.units[u].params.size(); ++slot) {
      const int index = plan.units[u].params[slot];
      const ParamSpec& spec = plan.params[static_cast<std::size_t>(index)];
      const at::Tensor& param = unit.param(static_cast<int>(slot));
      const at::Tensor part = local_param(model, index);
      left[static_cast<std::size_t>(index)] = std::make_shared<LooseShard>(
          param, spec.name, LooseGroup{group, model.device()},
          LooseShard::Left{.placeholder = unit.placeholder(static_cast<int>(slot)),
                           .sizes = spec.sizes,
                           .part = on_disk ? part.clone() : part,
                           .ranges = ranges_of_slot(mesh.mesh(), plan.units[u], slot, peers)});
    }
  }
  return left;
}

}  // namespace capstan::shard
