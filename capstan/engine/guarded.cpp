#include "capstan/engine/guarded.h"

#include <exception>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/device/error_text.h"
#include "capstan/engine/out_of_memory.h"

namespace capstan::engine {

void guarded(const Common& common, Phase phase, const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    common.diary.failed(error.what());
    throw;  // the group knows already
  } catch (const std::exception& error) {
    const char* const name = phase == Phase::step ? "step" : "backward";
    const std::string what = device::error_text(error);
    common.diary.failed(fmt::format("{} failed: {}", name, what));
    if (phase == Phase::step || common.group.size() > 1) {
      common.mesh.abort(fmt::format("rank {} failed in {}: {}", common.group.rank(), name, what));
    }
    if (is_out_of_memory(error)) {
      throw OutOfMemory(
          {.what = fmt::format("out of memory in {}: {}", name, what),
           .where = fmt::format("held by the engine: {}",
                                store::to_text(common.sharded.places().device_ledger().now())),
           .fix = common.sharded.settings().out_of_memory_advice});
    }
    throw;
  }
}

}  // namespace capstan::engine
