// Gradient shards whose home is host memory: they leave the device as soon as they are reduced, and
// are added up where they live.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/base/dtype.h"
#include "capstan/shard/host_traffic.h"
#include "capstan/shard/reduce.h"
#include "capstan/store/pool.h"

namespace capstan::shard {

// Owns:    the sums of the units it takes.
// Threads: one caller at a time.
class HostGrads final : public GradSink {
 public:
  // `takes` by unit. `accum`: the dtype of sums of several gradients. `pool` is the host's; it and
  // `traffic` must outlive this.
  HostGrads(std::vector<bool> takes, DType accum, HostTraffic& traffic, store::Pool& pool);

  bool takes(int unit) const override { return takes_[static_cast<std::size_t>(unit)]; }
  void take(int unit, at::Tensor sum) override;

  // Everything has arrived and is added.
  void finish();
  // After finish(); undefined where nothing came.
  const at::Tensor& sum(int unit) const { return homes_[static_cast<std::size_t>(unit)].sum; }
  // Forgets the values; the memory stays for the next step.
  void clear();

  // Told of every gradient while it is still on the device. `alone`: it is the step's first of its
  // unit, and so far the whole sum.
  std::function<void(int unit, const at::Tensor& sum, bool alone)> on_take;
  // Told when sum(unit) holds all that was taken so far, once `arrival` has come; and before it
  // changes again.
  std::function<void(int unit, HostTraffic::Ahead arrival)> on_ready;
  std::function<void(int unit)> before_change;

 private:
  struct Home {
    at::Tensor sum;  // 1-D; made when the first gradient comes
    bool filled = false;
  };
  // On the way to a buffer of its own, from which it goes to its home.
  struct Guest {
    int unit = 0;
    at::Tensor values;
    bool first = false;  // replaces what is there, instead of being added
  };

  at::Tensor new_host(std::int64_t elems, at::ScalarType dtype);

  std::vector<bool> takes_;
  at::ScalarType accum_;
  HostTraffic& traffic_;
  store::Pool& pool_;
  std::vector<Home> homes_;
  std::deque<Guest> guests_;
};

}  // namespace capstan::shard
