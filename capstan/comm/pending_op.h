// One collective in flight, as a value you hold.
#pragma once

#include <memory>

namespace capstan::comm {

struct InFlight;

// Holds every buffer the operation reads or writes until it is done.
// Threads: one owner at a time; may be waited for on another thread than the one that issued it.
// Ranks:   purely local; the order of waits need not be the same on every rank.
// Streams: for CUDA tensors over NCCL, wait() orders the current stream after the operation.
class [[nodiscard]] PendingOp {
 public:
  PendingOp();  // finished
  explicit PendingOp(std::unique_ptr<InFlight> op);
  PendingOp(PendingOp&&) noexcept;
  PendingOp& operator=(PendingOp&&) noexcept;
  ~PendingOp();  // an unfinished op goes back to its group, buffers and all

  // Returns when the result is there. Throws CommError on a time-out, a mismatch, an abort or a
  // dead peer; the group is then unusable. Afterwards done() is true either way.
  void wait();
  // True when wait() would not block for other ranks (a local sum may still be left for it).
  bool done() const;

 private:
  std::unique_ptr<InFlight> op_;
};

}  // namespace capstan::comm
