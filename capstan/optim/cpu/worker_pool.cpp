#include "capstan/optim/cpu/worker_pool.h"

#include <string>

#include "capstan/base/error.h"

namespace capstan::optim {

WorkerPool::WorkerPool(int threads) {
  if (threads < 1) {
    throw ConfigError({.what = "the optimizer was given " + std::to_string(threads) + " threads",
                       .where = "optim::WorkerPool",
                       .fix = "use 1 or more"});
  }
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

WorkerPool::~WorkerPool() {
  for (std::jthread& worker : workers_) worker.request_stop();
  workers_.clear();  // joins while the mutex and the conditions still exist
}

void WorkerPool::run_share(const Job& job) {
  for (int part = next_part_++; part < job.parts; part = next_part_++) job.call(job.context, part);
}

void WorkerPool::run_job(Job job) {
  if (workers_.empty() || job.parts <= 1) {
    for (int part = 0; part < job.parts; ++part) job.call(job.context, part);
    return;
  }
  const std::lock_guard turn(turn_);
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
    unfinished_ = static_cast<int>(workers_.size());
    next_part_ = 0;
    ++generation_;
  }
  wake_.notify_all();
  run_share(job);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return unfinished_ == 0; });
}

void WorkerPool::work(const std::stop_token& stop) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [&] { return generation_ != seen; })) {
    seen = generation_;
    const Job job = job_;
    lock.unlock();
    run_share(job);
    lock.lock();
    if (--unfinished_ == 0) done_.notify_one();
  }
}

}  // namespace capstan::optim
