// A flat buffer whose memory can be taken away and put back while views of it live on: one
// StorageImpl that stays the same object, so that a view saved by autograd in forward is valid
// again once memory is attached for backward.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "capstan/layout/flat_layout.h"

namespace capstan::shard {

// Threads: one caller at a time.
class FlatStorage {
 public:
  // `sizes[i]` is the shape of slot i. Nothing is attached.
  FlatStorage(const layout::FlatLayout& layout, const std::vector<std::vector<std::int64_t>>& sizes,
              at::TensorOptions options);

  std::int64_t bytes() const { return bytes_; }
  bool attached() const { return attached_; }

  // `memory` holds at least bytes().
  void attach(c10::DataPtr memory);
  // Gives the memory up; views of it must not be read until the next attach.
  c10::DataPtr detach();
  // Whether somebody holds a view besides those below.
  bool viewed_elsewhere() const;
  // Leaves the memory to the views that others hold, which stay valid as long as they live; what is
  // below is made anew, with nothing attached.
  void leave();

  // Valid whenever memory is attached.
  const at::Tensor& flat() const { return flat_; }  // 1-D, padded_elems
  const at::Tensor& slot(int index) const { return slots_[static_cast<std::size_t>(index)]; }

  // Part of flat().
  at::Tensor range(layout::ElemRange elems) const;
  // Fills what no slot covers: the gaps between slots and the end.
  void zero_padding();

 private:
  c10::Storage storage_;
  std::int64_t bytes_ = 0;
  bool attached_ = false;
  at::Tensor flat_;
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> gaps_;
};

}  // namespace capstan::shard
