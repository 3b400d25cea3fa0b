#include "capstan/store/places.h"

#include "capstan/base/error.h"

namespace capstan::store {

Places::Places(c10::Device device, const PlacesOptions& options, profile::Recorder* recorder)
    : device_(device, device_ledger_, options.device_advice), on_device_(device_) {
  if (!options.leaves_device()) return;
  // Page-locked memory serves copies to another device; there are none for a model on the CPU.
  const auto make_pool = [&](bool pin) {
    return Pool::of_host(host_ledger_, options.host_advice, pin && !device.is_cpu());
  };
  host_ = make_pool(options.pins_states());
  if (options.params.pin != options.pins_states()) host_params_ = make_pool(options.params.pin);
  Pool& host_params = host_params_ != nullptr ? *host_params_ : *host_;
  traffic_ = std::make_unique<HostTraffic>(device, recorder);
  states_.host = std::make_unique<MemoryHome>(*host_);
  params_.host = std::make_unique<MemoryHome>(host_params);
  if (options.states.placement == Placement::nvme) {
    states_.disk = std::make_unique<StreamedHome>(options.states.disk, options.streams,
                                                  disk_ledger_, recorder);
  }
  if (options.params.placement == Placement::nvme) {
    params_.disk = std::make_unique<ReadHome>(options.params.disk, options.read_ahead, host_params,
                                              disk_ledger_, recorder);
  }
}

Home& Places::at(Placement where, const Homes& homes) {
  if (where == Placement::device) return on_device_;
  const auto& home = where == Placement::host ? homes.host : homes.disk;
  if (home != nullptr) return *home;
  throw InternalError({.what = "state shall live where the engine has no memory",
                       .where = "store::Places",
                       .fix = "name the placement in PlacesOptions"});
}

std::string Places::why_not_pinned() const {
  for (const auto* pool : {&host_, &host_params_}) {
    if (*pool != nullptr && !(*pool)->why_not_pinned().empty()) return (*pool)->why_not_pinned();
  }
  return "";
}

}  // namespace capstan::store
