#include "capstan/store/pool.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/device/error_text.h"
#include "capstan/device/host_buffer.h"
#include "capstan/store/swap_files.h"

namespace capstan::store {
namespace {

// A free block may serve a smaller request when at most this share of it is wasted (chosen: units
// of one model differ little in size, apart from the embedding).
constexpr double kMaxWaste = 0.125;

}  // namespace

struct Pool::Core : std::enable_shared_from_this<Core> {
  struct Block {
    c10::DataPtr memory;
    std::int64_t capacity_bytes = 0;
    std::int64_t used_bytes = 0;
    MemoryKind kind = MemoryKind::parameters;
    Ledger* ledger = nullptr;
    std::shared_ptr<Core> core;  // set while the block is out, so that it outlives the pool
  };

  bool on_host = false;  // HostBuffers instead of the allocator of libtorch
  bool pinned = false;
  SwapFiles* files = nullptr;  // instead of either
  bool keeps = true;           // blocks that come back; else their allocator does

  std::mutex mutex;  // guards all below
  std::string why_not_pinned;
  std::multimap<std::int64_t, std::unique_ptr<Block>> idle;  // by capacity
  bool closed = false;                                       // the pool is gone: keep nothing

  static void give_back(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    const std::shared_ptr<Core> core = std::move(block->core);
    const std::lock_guard lock(core->mutex);
    if (core->closed) return;  // a model that outlives its engine; the ledger may be gone as well
    block->ledger->add(block->kind, -block->used_bytes);
    if (!core->keeps) return;
    core->idle.emplace(block->capacity_bytes, std::move(block));
  }

  std::unique_ptr<Block> reuse(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found = idle.lower_bound(bytes);
    if (found == idle.end()) return nullptr;
    const auto waste = static_cast<double>(found->first - bytes);
    if (waste > kMaxWaste * static_cast<double>(found->first)) return nullptr;
    std::unique_ptr<Block> block = std::move(found->second);
    idle.erase(found);
    return block;
  }

  c10::DataPtr allocate(std::int64_t bytes, c10::Device device) {
    if (files != nullptr) return files->take(bytes);
    if (!on_host) {
      return c10::GetAllocator(device.type())->allocate(static_cast<std::size_t>(bytes));
    }
    auto buffer = std::make_unique<device::HostBuffer>(host_buffer(bytes));
    void* const data = buffer->data();
    return {data, buffer.release(),
            [](void* context) { delete static_cast<device::HostBuffer*>(context); }, device};
  }

  // Slower copies are better than none: where pinning fails, pageable memory serves.
  device::HostBuffer host_buffer(std::int64_t bytes) {
    if (!pinned) return device::HostBuffer(bytes);
    try {
      return device::HostBuffer(bytes, device::HostMemory::pinned);
    } catch (const ConfigError& error) {
      device::HostBuffer pageable(bytes);  // throws where it was not the pinning
      const std::lock_guard lock(mutex);
      why_not_pinned = error.info().what;
      return pageable;
    }
  }

  void clear() {
    std::multimap<std::int64_t, std::unique_ptr<Block>> dropped;
    const std::lock_guard lock(mutex);
    dropped.swap(idle);
  }
};

Pool::Pool(c10::Device device, Ledger& ledger, std::string advice)
    : device_(device),
      ledger_(ledger),
      advice_(std::move(advice)),
      core_(std::make_shared<Core>()) {
  core_->keeps = device.is_cpu();
}

std::unique_ptr<Pool> Pool::of_host(Ledger& ledger, std::string advice, bool pinned) {
  auto pool = std::make_unique<Pool>(c10::kCPU, ledger, std::move(advice));
  pool->core_->on_host = true;
  pool->core_->pinned = pinned;
  return pool;
}

std::unique_ptr<Pool> Pool::of_disk(Ledger& ledger, SwapFiles& files) {
  auto pool = std::make_unique<Pool>(c10::kCPU, ledger, "free disk space, or name more nvme paths");
  pool->core_->files = &files;
  return pool;
}

std::string Pool::why_not_pinned() const {
  const std::lock_guard lock(core_->mutex);
  return core_->why_not_pinned;
}

Pool::~Pool() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->closed = true;
  }
  core_->clear();
}

c10::DataPtr Pool::take(std::int64_t bytes, MemoryKind kind) {
  std::unique_ptr<Core::Block> block = core_->reuse(bytes);
  if (block == nullptr) {
    block = std::make_unique<Core::Block>();
    block->capacity_bytes = bytes;
    try {
      block->memory = core_->allocate(bytes, device_);
    } catch (const IoError&) {
      throw;  // says more than we could
    } catch (const std::exception&) {
      core_->clear();  // what we keep for later may be just what is missing
      try {
        block->memory = core_->allocate(bytes, device_);
      } catch (const std::exception& error) {
        throw ConfigError(
            {.what = fmt::format("not enough memory for {} of {} on {}: {}", format_bytes(bytes),
                                 to_string(kind), device_.str(), device::reason_of(error)),
             .where = fmt::format("currently held: {}", to_text(ledger_.now())),
             .fix = advice_});
      }
    }
  }
  block->used_bytes = bytes;
  block->kind = kind;
  block->ledger = &ledger_;
  block->core = core_;
  ledger_.add(kind, bytes);
  void* const data = block->memory.get();
  return {data, block.release(), &Core::give_back, device_};
}

bool Pool::gave(const c10::DataPtr& memory) { return memory.get_deleter() == &Core::give_back; }

std::int64_t Pool::idle_bytes() const {
  const std::lock_guard lock(core_->mutex);
  std::int64_t total = 0;
  for (const auto& [capacity, block] : core_->idle) total += capacity;
  return total;
}

void Pool::trim() { core_->clear(); }

}  // namespace capstan::store
