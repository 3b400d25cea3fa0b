// Sums whose home is host memory: each part leaves the device as soon as it is there, and parts are
// added up where the sum lives.
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/store/host_traffic.h"
#include "capstan/store/pool.h"

namespace capstan::store {

// Told of sums on their way, by the thread that sends them.
class SumWatcher {
 public:
  virtual ~SumWatcher() = default;
  // A part is about to leave the device. `alone`: it is the first one, and so far the whole sum.
  virtual void leaves(int key, const at::Tensor& part, bool alone) = 0;
  // The sum on the host holds all that left so far, once `arrival` has come.
  virtual void complete(int key, Arrival arrival) = 0;
  // It is about to change.
  virtual void changes(int key) = 0;
};

// Owns:    the sums.
// Threads: one caller at a time.
class HostSums {
 public:
  // Keys are from 0 to `count`. `accum`: the dtype of sums of several parts. `pool` is the host's;
  // it, `traffic` and `watcher` must outlive this.
  HostSums(int count, at::ScalarType accum, HostTraffic& traffic, Pool& pool, SumWatcher& watcher)
      : accum_(accum),
        traffic_(traffic),
        pool_(pool),
        watcher_(watcher),
        sums_(static_cast<std::size_t>(count)) {}

  // A part of the sum goes home. `unit`: whose it is, for the recorder.
  void behind(int key, at::Tensor part, std::string_view unit);
  // Returns when everything has arrived and is added.
  void settle();
  // After settle(); undefined where nothing came.
  const at::Tensor& take(int key) const { return sums_[static_cast<std::size_t>(key)].values; }
  // Forgets the values; the memory stays for the next ones.
  void clear();

 private:
  struct Sum {
    at::Tensor values;  // 1-D; made when the first part comes
    bool filled = false;
  };
  // On the way to a buffer of its own, from which it goes to its sum.
  struct Guest {
    int key = 0;
    at::Tensor values;
    bool first = false;  // replaces what is there, instead of being added
  };

  void add(const Guest& guest);

  at::ScalarType accum_;
  HostTraffic& traffic_;
  Pool& pool_;
  SumWatcher& watcher_;
  std::vector<Sum> sums_;
  std::deque<Guest> guests_;
};

}  // namespace capstan::store
