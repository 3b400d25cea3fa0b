// The check of the gradients of a model on a GPU: norm, overflow and clipping are decided on the
// device, so that the update can be enqueued before the host knows the outcome.
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
class GradGate final : public shard::GradWatcher {
 public:
  GradGate(const shard::Plan& plan, const shard::ModelGroups& groups, c10::Device device);

  // Gradients that leave for the host are summed on their way.
  void leaves(int unit, const at::Tensor& sum, bool alone) override;

  // After finish_gradients(): enqueues the decision on the current stream. `run` sums what is on
  // the host and was not summed before.
  void start(shard::ShardedModel& model, const optim::GateRule& rule, const optim::CpuRun& run);
  // In device memory, for kernels that are enqueued after start().
  const optim::StepGate* gate() const;
  // Waits for the decision, not for what was enqueued behind it. The same bits as
  // measure_gradients(). Throws CommError when a peer fails meanwhile.
  GradNorm finish(const comm::Group& group);

 private:
  // The pieces of one unit, side by side in the list of all.
  struct UnitPieces {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::vector<std::int64_t> in_shard;  // where each begins
    bool summed = false;                 // in this step
  };

  void list_pieces(const shard::Plan& plan, const shard::ModelGroups& groups);
  void point_at(UnitPieces& pieces, const at::Tensor& grads);
  void sum_on_device(std::size_t begin, std::size_t end);
  void sum_on_host(UnitPieces& pieces, const at::Tensor& grads, const optim::CpuRun& run);

  c10::Device device_;
  int stage_;
  std::vector<UnitPieces> units_;        // by unit
  std::vector<optim::SumPiece> pieces_;  // of all units, in the order of the step
  std::vector<std::int32_t> param_of_;   // of each piece, a ParamCode
  std::int64_t block_count_ = 0;
  device::HostBuffer host_table_;   // read by the device until the decision
  device::HostBuffer host_sums_;    // likewise
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
