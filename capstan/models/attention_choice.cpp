#include "capstan/models/attention_choice.h"

#include <cstdint>

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>

namespace capstan::models {

void prefer_cudnn_attention() {
  const auto number = [](at::SDPBackend backend) { return static_cast<std::int64_t>(backend); };
  at::globalContext().setSDPUseCuDNN(true);
  at::globalContext().setSDPPriorityOrder(
      {number(at::SDPBackend::cudnn_attention), number(at::SDPBackend::flash_attention),
       number(at::SDPBackend::efficient_attention), number(at::SDPBackend::math)});
}

}  // namespace capstan::models
