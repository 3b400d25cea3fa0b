#include "capstan/models/attention_choice.h"

#include <cstdint>
#include <vector>

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>

namespace capstan::models {
namespace {

void set_order(const std::vector<at::SDPBackend>& backends) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(backends.size());
  for (const at::SDPBackend backend : backends) {
    numbers.push_back(static_cast<std::int64_t>(backend));
  }
  at::globalContext().setSDPPriorityOrder(numbers);
}

}  // namespace

void prefer_cudnn_attention() {
  at::globalContext().setSDPUseCuDNN(true);
  set_order({at::SDPBackend::cudnn_attention, at::SDPBackend::flash_attention,
             at::SDPBackend::efficient_attention, at::SDPBackend::math});
}

void avoid_cudnn_attention() {
  set_order({at::SDPBackend::flash_attention, at::SDPBackend::efficient_attention,
             at::SDPBackend::math, at::SDPBackend::cudnn_attention});
}

}  // namespace capstan::models
