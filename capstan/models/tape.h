// A model's forward and backward on paper: which memory is taken and given back, which units are
// used and which gradients come, in order. Plain values; needs no libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/base/dtype.h"

namespace capstan::models {

struct PaperParam {
  std::string name;  // as in named_parameters()
  std::vector<std::int64_t> sizes;
  bool trainable = true;
  std::optional<DType> dtype = {};  // unset: as the options say
};

// A module whose parameters are used together.
struct PaperUnit {
  std::string name;         // as in named_modules()
  std::vector<int> params;  // indices
};

struct TapeEvent {
  enum class Kind {
    take,  // of `bytes` under the number `index`
    give,  // what was taken under that number
    begin_use,
    end_use,  // of unit `index`
    begin_backward,
    gradient,  // of parameter `index`
    end_backward,
  };
  Kind kind = Kind::take;
  int index = 0;
  std::int64_t bytes = 0;
};

// One micro-batch on one rank.
struct TapeOptions {
  std::int64_t samples = 1;
  std::int64_t tokens = 1;  // of each sequence
  DType dtype = DType::fp32;
  bool on_gpu = false;
  int tensor = 1;    // ranks that split every layer
  int sequence = 1;  // ranks that share each sequence
  int threads = 1;   // of the CPU's kernels, which have memory each
};

// Everything that one rank needs to know of a model for its memory.
struct Paper {
  std::vector<PaperParam> params;
  std::vector<PaperUnit> units;
  std::int64_t buffer_bytes = 0;
  std::vector<TapeEvent> tape;
  // What forward leaves for backward in device memory, and in host memory.
  std::int64_t saved_bytes = 0;
  std::int64_t saved_host_bytes = 0;
};

// Threads: one caller at a time.
class TapeWriter {
 public:
  int take(std::int64_t bytes);
  void give(int block);
  void passing(std::int64_t bytes) { give(take(bytes)); }
  void begin_use(int unit) { add(TapeEvent::Kind::begin_use, unit); }
  void end_use(int unit) { add(TapeEvent::Kind::end_use, unit); }
  void gradient(int param) { add(TapeEvent::Kind::gradient, param); }
  void begin_backward() { add(TapeEvent::Kind::begin_backward, 0); }
  void end_backward() { add(TapeEvent::Kind::end_backward, 0); }

  std::int64_t held_bytes() const { return held_; }
  std::vector<TapeEvent> events() && { return std::move(events_); }

 private:
  void add(TapeEvent::Kind kind, int index) { events_.push_back({kind, index, 0}); }

  std::vector<TapeEvent> events_;
  std::vector<std::int64_t> blocks_;
  std::int64_t held_ = 0;
};

}  // namespace capstan::models
