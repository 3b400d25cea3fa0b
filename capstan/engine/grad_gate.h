// The check of the gradients where they live in GPU memory: norm, overflow and clipping are decided
// on the device, so that the update can be enqueued before the host knows the outcome.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "capstan/device/host_buffer.h"
#include "capstan/engine/grad_norm.h"
#include "capstan/optim/cuda/update.h"
#include "capstan/shard/sharded_model.h"

namespace capstan::engine {

// The stream that this thread enqueues on, as optim::CudaRun wants it.
void* current_stream(c10::Device device);

// Owns:    the table of gradient pieces and the sums made from it.
// Threads: one caller at a time.
// Ranks:   start() is collective.
class GradGate {
 public:
  explicit GradGate(const shard::ShardedModel& model);

  // After finish_gradients(): enqueues the decision on the current stream.
  void start(shard::ShardedModel& model, const optim::GateRule& rule);
  // In device memory, for kernels that are enqueued after start().
  const optim::StepGate* gate() const;
  // Waits for the decision, not for what was enqueued behind it. The same bits as
  // measure_gradients(). Throws CommError when a peer fails meanwhile.
  GradNorm finish(const comm::Group& group);

 private:
  void fill_table(shard::ShardedModel& model);

  c10::Device device_;
  std::vector<optim::SumPiece> pieces_;  // all but the addresses
  optim::SumWork work_;
  device::HostBuffer host_table_;   // read by the device from start() on
  device::HostBuffer host_result_;  // written by the device before the event
  at::Tensor table_;
  at::Tensor params_;    // of each piece
  at::Tensor blocks_;    // partial sums
  at::Tensor sums_;      // of each piece
  at::Tensor findings_;  // of this rank
  at::Tensor of_ranks_;
  at::Tensor result_;
  c10::Event decided_;
};

}  // namespace capstan::engine
