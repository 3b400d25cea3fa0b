// States that leave the device for a while, so that something else has room there: a second model,
// or generation between two phases of training.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/reduce.h"
#include "capstan/shard/unit.h"
#include "capstan/shard/updates.h"
#include "capstan/store/aside.h"
#include "capstan/store/places.h"

namespace capstan::shard {

struct AsideKinds {
  bool moments = false;
  bool masters = false;
  bool params = false;
  bool gradients = false;

  bool operator==(const AsideKinds&) const = default;
};

// Owns:    the host memory of what is aside.
// Threads: one caller at a time.
// Ranks:   local.
class PutAside {
 public:
  // `places` must outlive this; what is aside when this goes stays there.
  explicit PutAside(store::Places& places);

  // What is on the device of these, while nothing is on its way. `moments`: the optimizer's,
  // wherever they came from. Parameters that are gathered at this moment stay.
  void put(const AsideKinds& kinds, std::span<const Unit> units, const Updates& updates,
           Reducer& gradients, const std::vector<at::Tensor>& moments);
  void bring_back();
  const AsideKinds& kinds() const { return kinds_; }  // that are aside

 private:
  std::unique_ptr<store::Pool> host_;
  store::Aside aside_;
  AsideKinds kinds_;
};

}  // namespace capstan::shard
