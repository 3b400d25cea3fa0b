#include "capstan/recompute/autocast_state.h"

#include <ATen/autocast_mode.h>

namespace capstan::recompute {
namespace {

constexpr std::array<c10::DeviceType, 2> kAutocastDevices = {c10::DeviceType::CPU,
                                                             c10::DeviceType::CUDA};

}  // namespace

AutocastState AutocastState::of_thread() {
  AutocastState state;
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    state.saved_[i] = {at::autocast::is_autocast_enabled(kAutocastDevices[i]),
                       at::autocast::get_autocast_dtype(kAutocastDevices[i])};
  }
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::restore() const {
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], saved_[i].enabled);
    at::autocast::set_autocast_dtype(kAutocastDevices[i], saved_[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

}  // namespace capstan::recompute
