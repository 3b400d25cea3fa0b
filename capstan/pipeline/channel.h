// What two stages of a pipeline send each other: lists of tensors of any shape and dtype.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"
#include "capstan/pipeline/instruction.h"
#include "capstan/pipeline/stage.h"

namespace capstan::pipeline {

// A message is a short description (who sends what for which micro-batch; dtypes and shapes), then
// each tensor's bytes, straight from its memory into that of the tensor that arrives. Only what is
// not contiguous is copied before it travels. Undefined tensors arrive undefined, and whatever
// requires a gradient here requires one there, as a leaf. Shapes may differ from message to
// message.
//
// Threads: one at a time.
// Ranks:   each direction has an order of its own: what one side sends as its n-th message, the
//          other receives as its n-th.
class Channel {
 public:
  // Tensors arrive on `device`. The group must outlive this. Throws ConfigError over NCCL: it needs
  // both directions in one order, and sizes before a receive starts.
  Channel(comm::Group& group, int peer, c10::Device device);

  // Starts to send; the memory is kept until it has arrived.
  void send(const Transfer& transfer, const Tensors& tensors);
  // Starts to receive the peer's next message; several may be on their way.
  void receive(const Transfer& transfer);
  // Waits for a message whose receive was started. Throws CommError where the peer sent another.
  Tensors take(const Transfer& transfer);

  // Starts what has become possible and lets go what has arrived, without waiting. A tensor's bytes
  // move only after its description has arrived: call this now and then.
  void progress();
  // Waits until the peer has taken this; nothing happens where it was not sent, or has arrived.
  void finish_send(const Transfer& transfer);
  // Waits until the peer has taken all that was sent.
  void finish_sends();

 private:
  struct Outgoing {
    Transfer transfer;
    std::vector<comm::PendingOp> ops;
  };
  struct Incoming {
    enum class State { waits, head, rest, payload };
    Transfer transfer;
    State state = State::waits;
    at::Tensor description;  // int64
    comm::PendingOp op;      // of the description
    Tensors tensors;
    std::vector<bool> require_grad;
    std::vector<comm::PendingOp> payload;
  };

  // Until its payload is on its way. False: that would take waiting, and `wait` forbids it.
  bool advance(Incoming& message, bool wait);
  void start_payload(Incoming& message);

  comm::Group& group_;
  int peer_;
  c10::Device device_;
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;  // in the order of their receives
};

}  // namespace capstan::pipeline
