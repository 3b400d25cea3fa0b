// An engine's states off the device for a while; see shard/put_aside.h.
#pragma once

#include <memory>

#include "capstan/engine/common.h"
#include "capstan/engine/saver.h"
#include "capstan/shard/put_aside.h"

namespace capstan::engine {

// Owns:    what is aside.
// Threads: one caller at a time.
// Ranks:   local.
class StatesAside {
 public:
  // What `common` names and `saver` must outlive this.
  StatesAside(const Common& common, Saver& saver) : common_(common), saver_(saver) {}

  void put(const shard::AsideKinds& kinds);
  void bring_back() {
    if (aside_) aside_->bring_back();
  }
  shard::AsideKinds kinds() const { return aside_ ? aside_->kinds() : shard::AsideKinds{}; }

 private:
  Common common_;
  Saver& saver_;
  std::unique_ptr<shard::PutAside> aside_;  // since something was
};

}  // namespace capstan::engine
