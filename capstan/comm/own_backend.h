// What our own backends offer to Group beyond c10d::Backend, and the Work they return.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "capstan/comm/op.h"

namespace capstan::comm {

// Threads: as Group; abort_with() and explain_stall() from any thread.
class OwnBackend {
 public:
  virtual ~OwnBackend() = default;

  // Describes the operation that is issued next, as the caller of Group knows it.
  virtual void announce(const OpFacts& facts) = 0;
  // All-to-all of equal parts that leaves this rank's own part of `received` as it is: the ordered
  // sum reads it from `whole`.
  virtual c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& received, at::Tensor& whole) = 0;
  // Whether reduce_scatter_ordered() takes such tensors: the ordered sum, made by the backend
  // itself as parts arrive.
  virtual bool sums(const at::Tensor& whole) const = 0;
  virtual c10::intrusive_ptr<c10d::Work> reduce_scatter_ordered(at::Tensor& mine, at::Tensor& whole,
                                                                bool accumulate) = 0;
  // What is known about the peers of the oldest unfinished operation; empty when nothing is.
  virtual std::string explain_stall() = 0;
  // Ends all operations of this group, here and on peers, with a CommError that gives `reason`.
  virtual void abort_with(std::string_view reason) = 0;
};

// Finished by the backend's own thread; waiters sleep. Keeps its own state instead of the base
// class's, so that a thread sanitizer sees who synchronises with whom.
// Threads: any.
class OpWork final : public c10d::Work {
 public:
  OpWork(int rank, c10d::OpType type) : Work(rank, type) {}

  void complete() { fail(nullptr); }
  void fail(std::exception_ptr why);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // False when the time ran out. Throws what the operation failed with.
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  mutable std::mutex guard_;  // guards the rest
  std::condition_variable finished_;
  bool done_ = false;
  std::exception_ptr why_;
};

}  // namespace capstan::comm
