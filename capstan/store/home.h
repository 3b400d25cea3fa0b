// Where a kind of state lives between uses: in memory of the device or the host, or on disks.
// Whoever uses the state asks its home, and does not know which one it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>

#include "capstan/store/pool.h"

namespace capstan::store {

// Memory of a home that is used together: a shard; or a master and its moments, over the same
// elements.
using Spans = std::vector<std::span<std::byte>>;

// Values where the processor reads and changes them.
struct Taken {
  std::vector<std::byte*> at;  // of each span
  c10::DataPtr memory;         // holds them; null: the home does, until the next call
};

//   at home --ahead--> on its way --take--> taken --behind--> on its way back --settle--> at home
// Owns:    the memory of what lives there, and what is on its way.
// Threads: one caller at a time.
class Home {
 public:
  virtual ~Home() = default;

  // Memory that lives there. Anybody may use it as it is, outside of ahead() to settle(); from a
  // disk that is slow.
  virtual Pool& pool() = 0;
  // True: take() gives that memory itself.
  virtual bool in_place() const = 0;

  // What will be taken next, in this order: as much as there is room for is on its way when this
  // returns. Passes over what is on its way already.
  virtual void ahead(std::vector<Spans> next) = 0;
  virtual Taken take(const Spans& spans) = 0;
  // What was taken may have changed; it goes back. An error comes with the next call.
  virtual void behind() = 0;
  // Returns when everything has arrived. What was brought and not taken is forgotten.
  virtual void settle() = 0;
  // After the memory itself was written: its values are at home, and no other memory holds them.
  // Either all of it or what was taken from the pool since the last call.
  enum class Which { all, new_memory };
  virtual void write_back(Which which) = 0;
};

// Memory that the processor, or the device, reaches by itself: nothing ever travels.
class MemoryHome final : public Home {
 public:
  // `pool` must outlive this.
  explicit MemoryHome(Pool& pool) : pool_(pool) {}

  Pool& pool() override { return pool_; }
  bool in_place() const override { return true; }
  void ahead(std::vector<Spans> /*next*/) override {}
  Taken take(const Spans& spans) override {
    Taken taken;
    for (const auto& span : spans) taken.at.push_back(span.data());
    return taken;
  }
  void behind() override {}
  void settle() override {}
  void write_back(Which /*which*/) override {}

 private:
  Pool& pool_;
};

}  // namespace capstan::store
