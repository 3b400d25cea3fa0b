#include "capstan/store/host_sums.h"

#include <utility>

#include "capstan/store/tensor.h"

namespace capstan::store {
namespace {

// Buffers for parts that are added to others: one arrives while the other is added.
constexpr std::size_t kMaxGuests = 2;

}  // namespace

void HostSums::behind(int key, at::Tensor part, std::string_view unit) {
  Sum& sum = sums_[static_cast<std::size_t>(key)];
  const bool first = !std::exchange(sum.filled, true);
  watcher_.leaves(key, part, first);
  const auto new_host = [&] {
    return new_tensor(pool_, part.numel(), part.scalar_type(), MemoryKind::gradients);
  };
  // A sum of one part may stay in 16 bits; one that was wider once is wide enough for it.
  if (!sum.values.defined()) sum.values = new_host();
  if (first && sum.values.scalar_type() == part.scalar_type()) {
    watcher_.complete(key, traffic_.fetch(sum.values, std::move(part), unit));
    return;
  }
  if (guests_.size() >= kMaxGuests) settle();
  at::Tensor guest = new_host();
  traffic_.fetch(guest, std::move(part), unit);
  guests_.push_back({key, std::move(guest), first});
}

void HostSums::add(const Guest& guest) {
  at::Tensor& sum = sums_[static_cast<std::size_t>(guest.key)].values;
  watcher_.changes(guest.key);
  if (guest.first) {
    sum.copy_(guest.values);
  } else {
    if (c10::elementSize(sum.scalar_type()) < c10::elementSize(accum_)) {
      at::Tensor wide = new_tensor(pool_, sum.numel(), accum_, MemoryKind::gradients);
      wide.copy_(sum);
      sum = std::move(wide);
    }
    sum.add_(guest.values);
  }
  watcher_.complete(guest.key, {});
}

void HostSums::settle() {
  traffic_.finish_fetches();
  for (const Guest& guest : guests_) add(guest);
  guests_.clear();
}

void HostSums::clear() {
  settle();
  for (Sum& sum : sums_) sum.filled = false;
}

}  // namespace capstan::store
