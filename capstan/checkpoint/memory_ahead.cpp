#include "capstan/checkpoint/memory_ahead.h"

#include <exception>
#include <memory>
#include <stop_token>
#include <utility>

namespace capstan::checkpoint {

MemoryAhead::MemoryAhead(std::vector<std::int64_t> sizes, TakeMemory take_memory)
    : taker_([sizes = std::move(sizes),
              take_memory = std::move(take_memory)](const std::stop_token& stop) {
        std::vector<std::shared_ptr<void>> taken;
        taken.reserve(sizes.size());
        try {
          for (std::size_t i = 0; i < sizes.size() && !stop.stop_requested(); ++i) {
            taken.push_back(take_memory(sizes[i]));
          }
          // The save meets the same error in a place where it can be told.
          // NOLINTNEXTLINE(bugprone-empty-catch)
        } catch (const std::exception&) {
        }
      }) {}

void MemoryAhead::wait() { taker_.join(); }

}  // namespace capstan::checkpoint
