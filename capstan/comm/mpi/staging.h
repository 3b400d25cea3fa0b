// Device tensors over MPI: pinned host copies, filled before the messages start and copied back
// after they ended. Private to comm/mpi.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace capstan::comm {

class PinnedPool;

// One operation's tensors on the host. Made on the thread that issues the operation; the rest is
// called by the MPI thread and never blocks.
// Streams: inputs are read after what the issuing thread has queued on its current stream; outputs
//          are complete on the device before the operation is.
class Staging {
 public:
  Staging(std::shared_ptr<PinnedPool> pool, c10::Device device);
  ~Staging();

  // The host copy of `tensor`, filled from it (`read`), copied back to it (`write`), or both.
  at::Tensor stage(const at::Tensor& tensor, bool read, bool write);
  void start_inputs();

  bool inputs_ready();
  void start_outputs();
  bool outputs_ready();

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
    bool read;
    bool write;
  };
  const std::shared_ptr<PinnedPool> pool_;
  c10::Stream stream_;
  c10::Event event_;
  std::vector<Pair> pairs_;
};

}  // namespace capstan::comm
