// Copies between a device and host memory, beside the computation: on streams of their own, each
// ordered behind what it reads and before what reads it. For a model in CPU memory they are plain
// copies, so that the same code runs there.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "capstan/profile/recorder.h"

namespace capstan::store {

// The end of a copy.
struct Arrival {
  std::shared_ptr<c10::Event> arrived;  // null on the CPU: it has
};

// Owns:    the tensors of copies that have not ended.
// Threads: one caller at a time.
class HostTraffic {
 public:
  // `recorder` gets every copy, and every wait for one; null: nobody does. It must outlive this.
  explicit HostTraffic(c10::Device device, profile::Recorder* recorder = nullptr);
  ~HostTraffic();  // waits for all copies
  HostTraffic(const HostTraffic&) = delete;
  HostTraffic& operator=(const HostTraffic&) = delete;

  // Starts host = values, behind what the current stream holds now. `unit`, as below: whose they
  // are, for the recorder.
  Arrival fetch(at::Tensor host, at::Tensor values, std::string_view unit = {});
  // Returns when every fetch has arrived.
  void finish_fetches();

  // Starts values = host, behind what the current stream holds now, which may still read `values`.
  // Few are in flight at a time: waits for the oldest. The current stream goes on behind it.
  void send(at::Tensor values, at::Tensor host, std::string_view unit = {});

  // As send(), but the current stream does not wait until await().
  Arrival send_ahead(at::Tensor values, at::Tensor host, std::string_view unit = {});
  void await(const Arrival& ahead) const;

  // For sends from a thread beside the one that computes: after follow_current(), sends are behind
  // what the current stream held then, and not behind what it gets later. The current stream does
  // not wait until await().
  void follow_current();
  Arrival send_beside(at::Tensor values, at::Tensor host, std::string_view unit = {});
  // Returns when few sends are in flight.
  void limit_sends();
  // Returns when no send reads host memory any more.
  void finish_sends();
  // Gives host memory back that none reads any more.
  void drop_ended_sends() { drop_ended(sends_); }

  // What is issued while the handle of this stream is current runs behind the copies to the device.
  std::optional<c10::Stream> to_device() const { return to_device_; }

 private:
  struct Copy {
    at::Tensor to;
    at::Tensor from;
    std::shared_ptr<c10::Event> ended;
  };
  void order_behind_current(const c10::Stream& stream) const;
  // On one of our streams, if there is one.
  std::shared_ptr<c10::Event> start(const std::optional<c10::Stream>& stream, const at::Tensor& to,
                                    const at::Tensor& from, std::string_view unit) const;
  void wait_for(const Copy& copy) const;
  static void drop_ended(std::deque<Copy>& copies);

  c10::Device device_;
  profile::Recorder* recorder_;
  std::optional<c10::Stream> to_host_;  // none on the CPU, like the next
  std::optional<c10::Stream> to_device_;
  std::deque<Copy> fetches_;
  std::deque<Copy> sends_;
};

}  // namespace capstan::store
