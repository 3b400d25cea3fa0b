#include "capstan/tensor_parallel/own_random.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace capstan::tensor_parallel {
namespace {

// One number; no device is waited for.
std::uint64_t draw(at::Generator& generator) {
  if (generator.device().is_cpu()) {
    return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  const std::uint64_t offset = generator.get_offset();
  generator.set_offset(offset + 4);  // of what counter-based generators hand out at a time
  return generator.current_seed() + 0x9E3779B97F4A7C15ULL * (offset + 1);
}

// Neighbouring numbers become unlike ones (the finaliser of splitmix64).
std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

OwnRandom::OwnRandom(at::Device device, int rank)
    : generator_(at::globalContext().defaultGenerator(device)) {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  const std::uint64_t seed = draw(generator_);
  outside_ = generator_.get_state();
  generator_.set_current_seed(scrambled(seed + static_cast<std::uint64_t>(rank) + 1));
}

OwnRandom::~OwnRandom() {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  generator_.set_state(outside_);
}

}  // namespace capstan::tensor_parallel
