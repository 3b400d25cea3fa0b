#include "capstan/comm/mpi/mpi.h"

#include <algorithm>
#include <future>
#include <thread>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/comm/mpi/mpi_backend.h"

namespace capstan::comm {
namespace {

// How long a thread that was asked to end may take before it counts as stuck in the MPI library.
constexpr std::chrono::seconds kStopPatience{2};
constexpr std::chrono::seconds kFinalizePatience{60};

class MpiProcess final : public Mpi {
 public:
  explicit MpiProcess(MpiOptions options)
      : options_(options), worker_(std::make_shared<MpiWorker>(options)) {
    std::promise<MpiWorker::Start> started;
    std::promise<void> ended;
    ended_ = ended.get_future();
    thread_ = std::thread([worker = worker_, &started, ended = std::move(ended)]() mutable {
      worker->run([&](const MpiWorker::Start& start) { started.set_value(start); });
      worker.reset();
      ended.set_value();
    });
    start_ = started.get_future().get();
    if (!start_.error.empty()) {
      thread_.join();
      throw ConfigError({.what = start_.error,
                         .where = "comm: backend mpi",
                         .fix = "let capstan start MPI, or initialise it with MPI_THREAD_MULTIPLE "
                                "and keep it running"});
    }
  }

  ~MpiProcess() override { end(/*finalize=*/false, kStopPatience); }

  int rank() const override { return start_.rank; }
  int size() const override { return start_.size; }

  c10::intrusive_ptr<c10d::Backend> make_backend(std::vector<int> world_ranks,
                                                 std::string name) override {
    const int id = ++groups_made_;
    if (id > start_.largest_tag >> kTagGroupShift) {
      throw ConfigError({.what = fmt::format("this MPI has no tag left for group {}", id),
                         .where = fmt::format("comm: backend mpi, group '{}'", name),
                         .fix = "create fewer groups, or use an MPI with a larger MPI_TAG_UB"});
    }
    const auto me = std::ranges::find(world_ranks, start_.rank);
    if (me == world_ranks.end()) {
      return nullptr;
    }
    const int rank = static_cast<int>(me - world_ranks.begin());
    auto group = std::make_shared<MpiGroup>(id, std::move(name), std::move(world_ranks), rank);
    worker_->add_group(group);
    return c10::make_intrusive<MpiBackend>(worker_, group, options_);
  }

  void finalize() override {
    if (!end(/*finalize=*/true, kFinalizePatience)) {
      throw CommError({.what = "MPI_Finalize did not return",
                       .where = fmt::format("comm: backend mpi, rank {}", start_.rank),
                       .fix = "a peer has ended early; see its error"});
    }
  }

 private:
  // False when the thread is stuck; it is abandoned with all it uses.
  bool end(bool finalize, std::chrono::seconds patience) {
    if (!thread_.joinable()) {
      return true;
    }
    worker_->stop(finalize);
    const bool ended = ended_.wait_for(patience) == std::future_status::ready;
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
    return ended;
  }

  const MpiOptions options_;
  const std::shared_ptr<MpiWorker> worker_;  // shared with the thread and the backends
  std::thread thread_;                       // not a jthread: a stuck one must not be waited for
  std::future<void> ended_;
  MpiWorker::Start start_;
  int groups_made_ = 0;
};

}  // namespace

std::shared_ptr<Mpi> start_mpi(const RankEnv& env, MpiOptions options) {
  if (!env.mpi_started) {
    throw ConfigError(
        {.what = fmt::format("rank {} of {} was not started by an MPI launcher", env.rank,
                             env.world_size),
         .where = "comm: backend mpi",
         .fix = "start CPU ranks with `capstan launch`, `mpirun` or `srun --mpi=pmix`; ranks "
                "started by torchrun can use nccl, or a torch.distributed group from Python"});
  }
  return std::make_shared<MpiProcess>(options);
}

}  // namespace capstan::comm
