// One parameter that is sharded while its model is still being built: before there are units.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "capstan/comm/group.h"

namespace capstan::shard {

// Owns:    this rank's part: elements [rank * part, (rank + 1) * part) of the flat parameter,
//          padded with zeros.
// Threads: one caller at a time.
// Ranks:   all ranks of the group make, pin, change and unpin the same parameters in the same
//          order.
class EarlyShard {
 public:
  // Rank 0's values become everybody's, and `param`, which should own this, a placeholder. The part
  // stays on the parameter's device; what travels is copied to `travel`, which the group can reach.
  EarlyShard(const at::Tensor& param, std::string name, std::shared_ptr<comm::Group> group,
             c10::Device travel);

  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  const at::Tensor& part() const { return part_; }
  const std::shared_ptr<comm::Group>& group() const { return group_; }
  c10::Device travel() const { return travel_; }
  bool whole() const { return pins_ > 0; }

  void pin();  // whole until as many unpins
  void unpin();
  // While pinned: what `root` has in its parameter becomes everybody's.
  void take_from(int root);
  // While pinned: the parameter stays as it is, and this is of no further use.
  void hand_over() { part_.reset(); }

 private:
  at::Tensor param() const;
  void broadcast(const at::Tensor& whole, int root);
  void keep(const at::Tensor& whole);

  c10::weak_intrusive_ptr<at::TensorImpl> param_;  // owns us
  std::string name_;
  std::shared_ptr<comm::Group> group_;
  c10::Device travel_;
  std::vector<std::int64_t> sizes_;
  at::Tensor part_;         // 1-D, ceil(numel / ranks)
  at::Tensor placeholder_;  // shape [0]
  int pins_ = 0;
};

}  // namespace capstan::shard
