// One parameter that is sharded although no engine has it: while its model is being built, and
// after its engine is gone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "capstan/comm/group.h"
#include "capstan/layout/flat_layout.h"

namespace capstan::shard {

class ShardedModel;

// The ranks that share a parameter. What travels is copied to `travel`, which the group can reach.
struct LooseGroup {
  std::shared_ptr<comm::Group> ranks;
  c10::Device travel;
};

// Owns:    this rank's elements of the flat parameter.
// Threads: one caller at a time.
// Ranks:   all ranks of the group make, pin, change and unpin the same parameters in the same
//          order; one that an engine left is made by each for itself.
class LooseShard {
 public:
  // Rank 0's values become everybody's, and `param`, which should own this, a placeholder. Each
  // rank has as many elements, padded with zeros; they stay on the parameter's device.
  LooseShard(const at::Tensor& param, std::string name, LooseGroup group);

  // What an engine had of it.
  struct Left {
    at::Tensor placeholder;  // what the parameter holds now
    std::vector<std::int64_t> sizes;
    at::Tensor part;                        // 1-D: at least our range
    std::vector<layout::ElemRange> ranges;  // of each rank, in the flat parameter
  };
  LooseShard(const at::Tensor& param, std::string name, LooseGroup group, Left left);

  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  const at::Tensor& part() const { return part_; }
  const std::shared_ptr<comm::Group>& group() const { return group_.ranks; }
  c10::Device travel() const { return group_.travel; }
  bool whole() const { return pins_ > 0; }
  // How often take_from() was called.
  std::int64_t changes() const { return changes_; }

  void pin();  // whole until as many unpins
  void unpin();
  // While pinned: what `root` has in its parameter becomes everybody's.
  void take_from(int root);
  // The elements and the parameter in another dtype, whole or not. Local.
  void cast(at::ScalarType dtype);
  // While pinned: the parameter stays as it is, and this is of no further use.
  void hand_over() { part_.reset(); }

 private:
  at::Tensor param() const;
  std::int64_t numel() const;
  at::Tensor gather() const;
  void broadcast(const at::Tensor& whole, int root);
  void keep(const at::Tensor& whole);

  c10::weak_intrusive_ptr<at::TensorImpl> param_;  // owns us
  std::string name_;
  LooseGroup group_;
  std::vector<std::int64_t> sizes_;
  at::Tensor part_;
  std::vector<layout::ElemRange> ranges_;
  at::Tensor placeholder_;  // shape [0]
  int pins_ = 0;
  std::int64_t changes_ = 0;
};

// For a model that outlives its engine, which goes after this: by parameter, null for those that
// are whole. The shards stay where they are, but for those on a disk: they come to host memory.
// Throws what went wrong in an update that is not over. Local.
std::vector<std::shared_ptr<LooseShard>> leave_shards(ShardedModel& model,
                                                      const std::shared_ptr<comm::Group>& group);

}  // namespace capstan::shard
