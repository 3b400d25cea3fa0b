// Memory of one device, taken by exact size. The host's is kept for the next taker: units of equal
// size reuse each other's buffers, so a step takes no new memory after the first. A GPU's goes back
// to libtorch's allocator, which keeps it for everybody: activations use what gradients left.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "capstan/store/ledger.h"

namespace capstan::store {

class SwapFiles;

// Threads: any.
// Streams: a block that comes back is handed out again at once, on the stream that was current when
//          it was taken; whoever gives it back has ordered that stream after its last use.
class Pool {
 public:
  // `ledger` must outlive the pool. `advice`: what to do when memory is out, for the error.
  Pool(c10::Device device, Ledger& ledger, std::string advice = "use a device with more memory");
  // Of the host, for copies to and from a device: page-locked where that is asked for and works.
  static std::unique_ptr<Pool> of_host(Ledger& ledger, std::string advice, bool pinned);
  // Of disks. `files` must outlive every block.
  static std::unique_ptr<Pool> of_disk(Ledger& ledger, SwapFiles& files);
  ~Pool();  // blocks still out stay valid and free themselves when they are dropped
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  c10::Device device() const { return device_; }
  // Why blocks are not page-locked although that was asked for; empty: they are.
  std::string why_not_pinned() const;
  Ledger& ledger() const { return ledger_; }

  // Aligned to 64 bytes on a CPU, 512 on a GPU. Contents are arbitrary. Dropping the pointer gives
  // the block back. Throws ConfigError with the ledger when the device has no more memory.
  c10::DataPtr take(std::int64_t bytes, MemoryKind kind);
  // Whether it is a block of a pool.
  static bool gave(const c10::DataPtr& memory);

  // Memory held for later takers, and how to give it back to the device.
  std::int64_t idle_bytes() const;
  void trim();

 private:
  struct Core;
  c10::Device device_;
  Ledger& ledger_;
  std::string advice_;
  std::shared_ptr<Core> core_;
};

}  // namespace capstan::store
