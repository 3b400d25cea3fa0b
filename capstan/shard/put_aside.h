// States that leave the device for a while, so that something else has room there: a second model,
// or generation between two phases of training.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/sharded_model.h"
#include "capstan/store/aside.h"

namespace capstan::shard {

struct AsideKinds {
  bool moments = false;
  bool masters = false;
  bool params = false;
  bool gradients = false;

  bool operator==(const AsideKinds&) const = default;
};

// Threads: one caller at a time.
// Ranks:   local.
class PutAside {
 public:
  // Every use of the model, backward, step and access brings all back by itself, but for a forward
  // over parameters that are always whole. `model` must outlive this.
  explicit PutAside(ShardedModel& model);
  ~PutAside();  // what is aside stays there
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;

  // What is on the device of these. `moments`: the optimizer's, wherever they came from. Parameters
  // that are gathered at this moment stay.
  void put(const AsideKinds& kinds, const std::vector<at::Tensor>& moments);
  void bring_back();
  const AsideKinds& kinds() const { return kinds_; }  // that are aside

 private:
  std::vector<c10::Storage> params() const;

  ShardedModel& model_;
  std::unique_ptr<store::Pool> host_;
  store::Aside aside_;
  AsideKinds kinds_;
};

}  // namespace capstan::shard
