// operator new and delete that count what is in use. Under a sanitizer malloc is still its own.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/fuzz.h"

namespace {

std::atomic<std::int64_t> in_use{0};
std::atomic<std::int64_t> peak{0};

void* counted(void* memory) {
  if (memory == nullptr) return memory;
  const std::int64_t now = in_use += static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::int64_t before = peak;
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
  return memory;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  in_use -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(std::malloc(bytes == 0 ? 1 : bytes));
}
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}
void* operator new(std::size_t bytes) { return or_throw(operator new(bytes, std::nothrow)); }
void* operator new[](std::size_t bytes) { return or_throw(operator new(bytes, std::nothrow)); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  const auto alignment = static_cast<std::size_t>(align);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  return or_throw(counted(std::aligned_alloc(alignment, rounded)));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace capstan::test {

std::int64_t memory_in_use() { return in_use; }
std::int64_t peak_memory() { return peak; }
void reset_peak_memory() { peak = in_use.load(); }

}  // namespace capstan::test
