// A group of ranks and the collectives between them, over any c10d::Backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "capstan/comm/op.h"
#include "capstan/comm/pending_op.h"
#include "capstan/profile/recorder.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace capstan::comm {

class SideChannel;
struct GroupState;

// How sums over ranks are made. `ordered`: shards are exchanged and added locally in rank order,
// accumulated in fp32 (fp64 in fp64, integers exactly): the same bits on every rank, in every run
// and over every backend. `native`: NCCL's own reduction where dtypes allow it; ordered elsewhere.
enum class Reduction { ordered, native };

struct GroupOptions {
  std::string name = "world";  // appears in errors
  std::chrono::milliseconds timeout{600'000};
  Reduction reduction = Reduction::ordered;
  // All-reduces up to this size take one exchange of whole vectors instead of two of shards:
  // half the latency for n times the bytes. The result has the same bits either way.
  std::int64_t small_all_reduce_bytes = 32 << 10;
  // Where ranks compare notes about an operation that does not finish, for backends that cannot
  // tell by themselves. Empty: such a mismatch is found only by the timeout.
  std::shared_ptr<SideChannel> side_channel;
  // Gets a span of every operation, by the operation's name and label: from its issue to the end of
  // its wait(), or, over NCCL, as long as the device is at it. Null: the group makes its own.
  std::shared_ptr<profile::Recorder> recorder;
};

struct ReduceOptions {
  bool accumulate = false;  // add the sum to what `mine` holds, instead of replacing it
  std::string_view label;   // names the operation in errors; copied
  // > 1: ranks are added in blocks of so many, in mine's dtype, then the blocks: the order of two
  // levels of groups, for whoever wants its bits without having them.
  int blocks_of = 1;
};

// Tensors are 1-D and contiguous: fp32, fp16, bf16, fp64, int32, int64 or uint8.
// Threads: any; whoever shares a group between threads must keep the order of calls equal on all
//          ranks.
// Ranks:   collective; every rank of the group issues the same operations in the same order.
//          Operations start at once; PendingOp::wait() gives the result. A group of one is not
//          special.
class Group {
 public:
  explicit Group(const c10::intrusive_ptr<c10d::Backend>& backend, GroupOptions options = {});
  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  int rank() const;
  int size() const;
  const std::string& name() const;
  c10d::Backend& backend() const;
  // Never null: for whoever reads the spans, or adds those of the same rank.
  const std::shared_ptr<profile::Recorder>& recorder() const;

  // whole: size() * mine.numel() elements of mine's dtype, in rank order. `mine` may be this
  // rank's part of `whole`.
  PendingOp all_gather(at::Tensor whole, at::Tensor mine, std::string_view label = {});
  // mine = this rank's part of the sum of all ranks' `whole`. `mine` may have another floating
  // dtype than `whole`: what travels is whole's dtype, the fp32 sum is written once in mine's.
  PendingOp reduce_scatter(at::Tensor mine, at::Tensor whole, ReduceOptions options = {});
  // In place: afterwards every rank holds the same sum.
  PendingOp all_reduce(at::Tensor tensor, std::string_view label = {});
  // In place: afterwards every rank holds what `root` held.
  PendingOp broadcast(at::Tensor tensor, int root, std::string_view label = {});
  // received[r] = the part that rank r sent to us; equal parts.
  PendingOp all_to_all(at::Tensor received, at::Tensor sent, std::string_view label = {});
  PendingOp send(at::Tensor tensor, int to, std::string_view label = {});
  PendingOp recv(at::Tensor tensor, int from, std::string_view label = {});
  PendingOp barrier(std::string_view label = {});

  Counters counters() const;
  void reset_counters();
  // How many receive buffers were allocated so far; constant once the first step is over.
  std::int64_t buffers_made() const;
  // This rank's last operations, oldest first, one per line.
  std::string recent_operations() const;

  // True after a CommError or an abort: only close() and the destructor make sense then.
  bool failed() const;
  // Throws CommError where failed(): for whoever waits for a device instead of a PendingOp.
  void check() const;
  // Waits for operations whose handles were dropped; afterwards the group takes no more. Returns
  // how many there were: each is a bug of the caller.
  int close();
  // Ends every operation of this group on every rank that can still be told, with a CommError that
  // carries `reason`. For a rank that fails between collectives: its peers need not wait it out.
  void abort(std::string_view reason);

 private:
  PendingOp all_reduce_small(InFlight op, at::Tensor tensor);
  PendingOp all_reduce_in_shards(InFlight op, const at::Tensor& tensor);

  std::shared_ptr<GroupState> state_;  // shared with its PendingOps: one dropped while an exception
                                       // unwinds may outlive the group
};

}  // namespace capstan::comm
