// An engine's states off the device for a while; see shard/put_aside.h.
#pragma once

#include "capstan/engine/common.h"
#include "capstan/engine/saver.h"
#include "capstan/shard/put_aside.h"

namespace capstan::engine {

// Threads: one caller at a time.
// Ranks:   local.
class StatesAside {
 public:
  // What `common` names and `saver` must outlive this.
  StatesAside(const Common& common, Saver& saver) : common_(common), saver_(saver) {}

  void put(const shard::AsideKinds& kinds);
  void bring_back() { common_.sharded.bring_back(); }
  shard::AsideKinds kinds() const { return common_.sharded.aside(); }

 private:
  Common common_;
  Saver& saver_;
};

}  // namespace capstan::engine
