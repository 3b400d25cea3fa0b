// Device memory that is put aside in page-locked host memory for a while, to make room on the
// device. Tensors over it stay the same objects and stay valid meanwhile: a device reaches such
// memory by itself, slowly.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Storage.h>

#include "capstan/store/pool.h"

namespace capstan::store {

// Owns:    nothing but the list: the memory is the storages' own, here and there.
// Threads: one caller at a time.
class Aside {
 public:
  // Where memory of `device` came from it goes back to; both pools must outlive the storages.
  Aside(Pool& device, Pool& host) : device_(device), host_(host) {}

  // Passes over what is there already. Throws ConfigError where the host has no such memory; all
  // that was put before stays so.
  void put(const std::vector<c10::Storage>& storages, MemoryKind kind);
  // All of it, but for what was given up meanwhile. Throws ConfigError where the device has
  // no more memory; the rest stays aside.
  void bring_back();
  bool empty() const { return items_.empty(); }

 private:
  struct Item {
    c10::Storage storage;
    MemoryKind kind = MemoryKind::parameters;
    bool pooled = false;  // it came from `device_`, else from libtorch's allocator
  };
  c10::DataPtr host_memory(const c10::Storage& storage, MemoryKind kind);
  void wait() const;  // for the copies

  Pool& device_;
  Pool& host_;
  std::vector<Item> items_;
};

}  // namespace capstan::store
