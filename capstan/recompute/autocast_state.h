// Remembers the thread's autocast settings, so that a forward computed again in backward (perhaps
// on another thread) rounds as the first one did.
#pragma once

#include <array>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace capstan::recompute {

class AutocastState {
 public:
  static AutocastState of_thread();
  void restore() const;

 private:
  struct Saved {
    bool enabled = false;
    c10::ScalarType dtype = c10::ScalarType::Float;
  };
  std::array<Saved, 2> saved_;  // CPU, CUDA
  bool cache_enabled_ = true;
};

class AutocastReplay {
 public:
  explicit AutocastReplay(const AutocastState& inside) : outside_(AutocastState::of_thread()) {
    inside.restore();
  }
  AutocastReplay(const AutocastReplay&) = delete;
  AutocastReplay& operator=(const AutocastReplay&) = delete;
  ~AutocastReplay() { outside_.restore(); }

 private:
  AutocastState outside_;
};

}  // namespace capstan::recompute
