#include "capstan/engine/out_of_memory.h"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace capstan::engine {

std::string next_saving(const Options& options) {
  if (!options.recompute.enabled) {
    return "keep fewer activations: compute each block again in backward (activation "
           "checkpointing)";
  }
  if (options.shard.stage < 2) return "shard the gradients: zero_optimization.stage 2";
  if (options.shard.stage < 3) return "shard the parameters: zero_optimization.stage 3";
  const bool keeps_more = options.shard.prefetch_bytes > 0 || options.shard.max_reuse_bytes > 0;
  if (keeps_more) {
    return "keep fewer units whole: lower stage3_max_reuse_distance and "
           "stage3_prefetch_bucket_size, to 0 if need be";
  }
  if (options.batch.micro_samples > 1) {
    return fmt::format(
        "halve the micro-batch (train_micro_batch_size_per_gpu is {}) and double "
        "gradient_accumulation_steps",
        options.batch.micro_samples);
  }
  return "use more ranks: every shard gets smaller";
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // The CPU allocator throws a plain error; its text is all that tells.
  return std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

}  // namespace capstan::engine
