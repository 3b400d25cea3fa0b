#include "capstan/store/host_traffic.h"

#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/profile/event_clock.h"

namespace capstan::store {
namespace {

// Staging buffers that may be on their way to the device: one is filled while two travel.
constexpr std::size_t kSendsInFlight = 3;

}  // namespace

HostTraffic::HostTraffic(c10::Device device, profile::Recorder* recorder)
    : device_(device), recorder_(recorder) {
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

std::shared_ptr<c10::Event> HostTraffic::start(const std::optional<c10::Stream>& stream,
                                               const at::Tensor& to, const at::Tensor& from,
                                               std::string_view unit) const {
  const c10::OptionalStreamGuard on_ours(stream);
  const profile::Span span(recorder_, {.name = &stream == &to_host_ ? "to host" : "to device",
                                       .unit = unit,
                                       .kind = profile::Kind::copy,
                                       .bytes = static_cast<std::int64_t>(to.nbytes()),
                                       .device = profile::index_of(device_)});
  to.copy_(from, /*non_blocking=*/stream.has_value());
  if (!stream.has_value()) return nullptr;
  auto ended = std::make_shared<c10::Event>(device_.type());
  ended->record(*stream);
  return ended;
}

void HostTraffic::wait_for(const Copy& copy) const {
  const profile::Span waiting(recorder_, {.name = "copy", .kind = profile::Kind::wait});
  copy.ended->synchronize();
}

void HostTraffic::drop_ended(std::deque<Copy>& copies) {
  while (!copies.empty() && copies.front().ended->query()) copies.pop_front();
}

Arrival HostTraffic::fetch(at::Tensor host, at::Tensor values, std::string_view unit) {
  if (!to_host_.has_value()) return {start(to_host_, host, values, unit)};
  drop_ended(fetches_);
  order_behind_current(*to_host_);
  auto ended = start(to_host_, host, values, unit);
  fetches_.push_back({std::move(host), std::move(values), ended});
  return {std::move(ended)};
}

void HostTraffic::finish_fetches() {
  for (const Copy& copy : fetches_) wait_for(copy);
  fetches_.clear();
}

void HostTraffic::finish_sends() {
  for (const Copy& copy : sends_) wait_for(copy);
  sends_.clear();
}

Arrival HostTraffic::send_ahead(at::Tensor values, at::Tensor host, std::string_view unit) {
  if (to_device_.has_value()) {
    drop_ended(sends_);
    order_behind_current(*to_device_);
  }
  return send_beside(std::move(values), std::move(host), unit);
}

void HostTraffic::follow_current() {
  if (to_device_.has_value()) order_behind_current(*to_device_);
}

Arrival HostTraffic::send_beside(at::Tensor values, at::Tensor host, std::string_view unit) {
  auto ended = start(to_device_, values, host, unit);
  if (ended == nullptr) return {};
  sends_.push_back({std::move(values), std::move(host), ended});
  return {std::move(ended)};
}

void HostTraffic::limit_sends() {
  while (sends_.size() >= kSendsInFlight) {
    wait_for(sends_.front());
    sends_.pop_front();
  }
}

void HostTraffic::await(const Arrival& ahead) const {
  if (ahead.arrived == nullptr) return;
  ahead.arrived->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void HostTraffic::send(at::Tensor values, at::Tensor host, std::string_view unit) {
  limit_sends();
  await(send_ahead(std::move(values), std::move(host), unit));
}

}  // namespace capstan::store
