#include "capstan/engine/clock_exchange.h"

#include <chrono>
#include <cstdint>

#include <ATen/Functions.h>

#include "capstan/profile/clock_offset.h"
#include "capstan/profile/device_clock.h"

namespace capstan::engine {
namespace {

// The first ones set connections up.
constexpr int kExchanges = 12;

std::int64_t now_ns() {
  return std::chrono::nanoseconds(profile::Clock::now().time_since_epoch()).count();
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

double ask(comm::Group& group, const at::Tensor& message, int rank) {
  std::vector<profile::PingPong> exchanges;
  for (int i = 0; i < kExchanges; ++i) {
    const std::int64_t sent = now_ns();
    group.send(message, rank, "clock").wait();
    group.recv(message, rank, "clock").wait();
    const auto answered = message.item<std::int64_t>();
    exchanges.push_back({microseconds(sent), microseconds(answered), microseconds(now_ns())});
  }
  return profile::clock_offset_us(exchanges);
}

void answer(comm::Group& group, const at::Tensor& message) {
  for (int i = 0; i < kExchanges; ++i) {
    group.recv(message, 0, "clock").wait();
    message.item<std::int64_t>();  // it is here, also on a device
    message.fill_(now_ns());
    group.send(message, 0, "clock").wait();
  }
}

}  // namespace

std::vector<double> clock_offsets(comm::Group& group, c10::Device device) {
  std::vector<double> offsets(static_cast<std::size_t>(group.size()), 0.0);
  const at::Tensor message = at::zeros({1}, at::TensorOptions(device).dtype(at::kLong));
  if (group.rank() > 0) {
    answer(group, message);
    return offsets;
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    offsets[static_cast<std::size_t>(rank)] = ask(group, message, rank);
  }
  return offsets;
}

}  // namespace capstan::engine
