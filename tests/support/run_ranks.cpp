#include "tests/support/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace capstan {
namespace {

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

void run_ranks(int n, const std::function<void(comm::Group&)>& fn, RunRanksOptions options) {
  const auto hub = comm::make_loopback_hub(n, options.loopback);
  std::mutex mutex;
  std::exception_ptr first;  // guarded by mutex; later ones follow from it
  {
    std::vector<std::jthread> ranks;
    ranks.reserve(n);
    for (int rank = 0; rank < n; ++rank) {
      ranks.emplace_back([&, rank] {
        comm::Group group(comm::make_loopback(hub, rank),
                          {.name = "test", .timeout = options.timeout});
        try {
          fn(group);
        } catch (...) {
          const std::exception_ptr error = std::current_exception();
          {
            const std::lock_guard lock(mutex);
            if (!first) first = error;
          }
          group.abort(reason_of(error));
        }
      });
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace capstan
