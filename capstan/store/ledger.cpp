#include "capstan/store/ledger.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "capstan/base/text.h"

namespace capstan::store {

std::string_view to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters:
      return "parameters";
    case MemoryKind::gradients:
      return "gradients";
    case MemoryKind::optimizer:
      break;
  }
  return "optimizer";
}

std::int64_t MemoryUse::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

MemoryUse& MemoryUse::operator+=(const MemoryUse& other) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] += other.bytes[i];
  return *this;
}

std::string to_text(const MemoryUse& use) {
  return fmt::format(
      "parameters {}, gradients {}, optimizer {}", format_bytes(use[MemoryKind::parameters]),
      format_bytes(use[MemoryKind::gradients]), format_bytes(use[MemoryKind::optimizer]));
}

void Ledger::add(MemoryKind kind, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  now_[kind] += bytes;
  peak_[kind] = std::max(peak_[kind], now_[kind]);
  peak_total_ = std::max(peak_total_, now_.total());
}

MemoryUse Ledger::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

MemoryUse Ledger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::int64_t Ledger::peak_total() const {
  const std::lock_guard lock(mutex_);
  return peak_total_;
}

void Ledger::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = now_;
  peak_total_ = now_.total();
}

}  // namespace capstan::store
