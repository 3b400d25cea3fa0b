#include "tests/tune/counted_tensors.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace capstan::test {
namespace {

struct Count {
  std::atomic<std::int64_t> now{0};
  std::atomic<std::int64_t> peak{0};

  void add(std::int64_t bytes) {
    const std::int64_t held = now += bytes;
    std::int64_t before = peak;
    while (held > before && !peak.compare_exchange_weak(before, held)) {
    }
  }
};

const std::shared_ptr<Count>& count_of_thread() {
  static thread_local const auto count = std::make_shared<Count>();
  return count;
}

// Before each block. A thread may end before its tensors.
struct Header {
  std::size_t bytes = 0;
  std::shared_ptr<Count> count;
};
constexpr std::size_t kAlign = 64;
static_assert(sizeof(Header) <= kAlign);

class CountingAllocator final : public c10::Allocator {
 public:
  // Who asks for plain pointers wants the data itself as its context.
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t all = (bytes + 2 * kAlign - 1) / kAlign * kAlign;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, all));
    if (memory == nullptr) throw std::bad_alloc();
    auto* const header = new (memory) Header{bytes, count_of_thread()};
    header->count->add(static_cast<std::int64_t>(bytes));
    void* const data = memory + kAlign;
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void give_back(void* data) {
    if (data == nullptr) return;
    std::byte* const memory = static_cast<std::byte*>(data) - kAlign;
    auto* const header = std::launder(reinterpret_cast<Header*>(memory));
    header->count->add(-static_cast<std::int64_t>(header->bytes));
    header->~Header();
    std::free(memory);
  }
};

}  // namespace

void count_tensors() {
  static std::once_flag once;
  static std::unique_ptr<CountingAllocator> allocator;
  std::call_once(once, [] {
    allocator = std::make_unique<CountingAllocator>();
    c10::SetCPUAllocator(allocator.get(), /*priority=*/255);
  });
}

std::int64_t tensor_bytes() { return count_of_thread()->now; }
std::int64_t peak_tensor_bytes() { return count_of_thread()->peak; }
void reset_tensor_peak() { count_of_thread()->peak = count_of_thread()->now.load(); }

}  // namespace capstan::test
