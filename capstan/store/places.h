// All memory of one engine: of its device, of the host and on disks, as homes for kinds of state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "capstan/profile/recorder.h"
#include "capstan/store/disk_homes.h"
#include "capstan/store/home.h"
#include "capstan/store/host_traffic.h"
#include "capstan/store/ledger.h"
#include "capstan/store/options.h"
#include "capstan/store/pool.h"

namespace capstan::store {

// Of one kind of state: where some of it lives, beside the device.
struct PlaceOptions {
  Placement placement = Placement::device;
  bool pin = true;   // page-locked host memory
  SwapOptions disk;  // nvme
};

struct PlacesOptions {
  PlaceOptions states;        // masters and moments
  StreamOptions streams;      // of states on disks
  PlaceOptions params;        // shards
  ReadAhead read_ahead;       // of shards on disks
  std::string device_advice;  // what to do when memory is out
  std::string host_advice;

  bool leaves_device() const {
    return states.placement != Placement::device || params.placement != Placement::device;
  }
  // Of the memory that states, gradients and values on their way have: for states that stay on the
  // device, as the parameters want it.
  bool pins_states() const {
    return states.placement != Placement::device ? states.pin : params.pin;
  }
};

// Owns:    pools, files, and copies between host and device.
// Threads: as each of them.
class Places {
 public:
  // `recorder` must outlive this. Throws IoError where a folder cannot be used.
  Places(c10::Device device, const PlacesOptions& options, profile::Recorder* recorder);

  Pool& device() { return device_; }
  // Only where something leaves the device.
  Pool& host() { return *host_; }
  HostTraffic* traffic() { return traffic_.get(); }  // null where nothing does

  Home& states(Placement where) { return at(where, states_); }
  Home& params(Placement where) { return at(where, params_); }

  Ledger& device_ledger() { return device_ledger_; }
  Ledger& host_ledger() { return host_ledger_; }
  Ledger& disk_ledger() { return disk_ledger_; }
  // Why host memory is not page-locked although that was asked for; empty: it is, or none is used.
  std::string why_not_pinned() const;

 private:
  struct Homes {
    std::unique_ptr<Home> host;
    std::unique_ptr<Home> disk;
  };
  Home& at(Placement where, const Homes& homes);

  Ledger device_ledger_;
  Ledger host_ledger_;
  Ledger disk_ledger_;
  Pool device_;
  MemoryHome on_device_;
  std::unique_ptr<Pool> host_;         // null where nothing leaves the device, like the next two
  std::unique_ptr<Pool> host_params_;  // where they want another sort of memory
  std::unique_ptr<HostTraffic> traffic_;
  Homes states_;
  Homes params_;
};

}  // namespace capstan::store
