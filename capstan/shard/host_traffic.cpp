#include "capstan/shard/host_traffic.h"

#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace capstan::shard {
namespace {

// Staging buffers that may be on their way to the device: one is filled while two travel.
constexpr std::size_t kSendsInFlight = 3;

}  // namespace

HostTraffic::HostTraffic(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  to_host_ = guard.getStreamFromGlobalPool(device);
  to_device_ = guard.getStreamFromGlobalPool(device);
}

HostTraffic::~HostTraffic() {
  for (const auto* copies : {&fetches_, &sends_}) {
    for (const Copy& copy : *copies) copy.ended->synchronize();
  }
}

void HostTraffic::order_behind_current(const c10::Stream& stream) const {
  c10::Event ready(device_.type());
  ready.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  ready.block(stream);
}

std::shared_ptr<c10::Event> HostTraffic::start(const c10::Stream& stream, const at::Tensor& to,
                                               const at::Tensor& from) const {
  const c10::StreamGuard on_ours(stream);
  to.copy_(from, /*non_blocking=*/true);
  auto ended = std::make_shared<c10::Event>(device_.type());
  ended->record(stream);
  return ended;
}

void HostTraffic::drop_ended(std::deque<Copy>& copies) {
  while (!copies.empty() && copies.front().ended->query()) copies.pop_front();
}

HostTraffic::Ahead HostTraffic::fetch(at::Tensor host, at::Tensor values) {
  if (!to_host_.has_value()) {
    host.copy_(values);
    return {};
  }
  drop_ended(fetches_);
  order_behind_current(*to_host_);
  auto ended = start(*to_host_, host, values);
  fetches_.push_back({std::move(host), std::move(values), ended});
  return {std::move(ended)};
}

void HostTraffic::finish_fetches() {
  for (const Copy& copy : fetches_) copy.ended->synchronize();
  fetches_.clear();
}

void HostTraffic::finish_sends() {
  for (const Copy& copy : sends_) copy.ended->synchronize();
  sends_.clear();
}

HostTraffic::Ahead HostTraffic::send_ahead(at::Tensor values, at::Tensor host) {
  if (!to_device_.has_value()) {
    values.copy_(host);
    return {};
  }
  drop_ended(sends_);
  order_behind_current(*to_device_);
  return send_beside(std::move(values), std::move(host));
}

void HostTraffic::follow_current() {
  if (to_device_.has_value()) order_behind_current(*to_device_);
}

HostTraffic::Ahead HostTraffic::send_beside(at::Tensor values, at::Tensor host) {
  if (!to_device_.has_value()) {
    values.copy_(host);
    return {};
  }
  auto ended = start(*to_device_, values, host);
  sends_.push_back({std::move(values), std::move(host), ended});
  return {std::move(ended)};
}

void HostTraffic::limit_sends() {
  while (sends_.size() >= kSendsInFlight) {
    sends_.front().ended->synchronize();
    sends_.pop_front();
  }
}

void HostTraffic::await(const Ahead& ahead) const {
  if (ahead.arrived == nullptr) return;
  ahead.arrived->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void HostTraffic::send(at::Tensor values, at::Tensor host) {
  limit_sends();
  await(send_ahead(std::move(values), std::move(host)));
}

}  // namespace capstan::shard
