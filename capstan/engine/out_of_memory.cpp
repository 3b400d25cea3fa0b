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
  const OptionNames& names = options.names;
  if (options.shard.stage < 2) return "shard the gradients: " + names("shard.stage") + " 2";
  if (options.shard.stage < 3) return "shard the parameters: " + names("shard.stage") + " 3";
  const bool keeps_more = options.shard.prefetch_bytes > 0 || options.shard.max_reuse_bytes > 0;
  if (keeps_more) {
    return fmt::format("keep fewer units whole: lower {} and {}, to 0 if need be",
                       names("shard.max_reuse_bytes"), names("shard.prefetch_bytes"));
  }
  if (options.batch.micro_samples > 1) {
    return fmt::format("halve the micro-batch ({} is {}) and double {}",
                       names("batch.micro_samples"), options.batch.micro_samples,
                       names("batch.accumulation_steps"));
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
