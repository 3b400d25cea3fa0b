#include "capstan/store/swap_reader.h"

#include <chrono>
#include <utility>

namespace capstan::store {
namespace {

// A disk that has not answered by then has failed.
constexpr std::chrono::minutes kReadPatience{10};

}  // namespace

SwapReader::SwapReader(const SwapFiles& files, Pool& pool, const ReadAhead& options,
                       profile::Recorder* recorder)
    : files_(files),
      pool_(pool),
      limit_bytes_(options.limit_bytes),
      recorder_(recorder),
      ring_(options.io, silence_) {}

SwapReader::Read SwapReader::start(std::span<const std::byte> span) {
  Read read;
  read.bytes = static_cast<std::int64_t>(span.size());
  read.memory = std::make_shared<c10::DataPtr>(pool_.take(read.bytes, MemoryKind::parameters));
  read.span = {recorder_, {.name = "read", .kind = profile::Kind::io, .bytes = read.bytes}};
  const SwapFiles::Place place = files_.place_of(span.data());
  read.transfer =
      ring_.read(*place.file, place.offset,
                 {static_cast<std::byte*>(read.memory->get()), span.size()}, read.memory);
  return read;
}

void SwapReader::wait_for(Read& read) {
  const profile::Span waiting(recorder_, {.name = "read", .kind = profile::Kind::wait});
  read.transfer.wait_at_most(kReadPatience);
  read.span.end();
}

bool SwapReader::read_ahead(std::span<const std::byte> span) {
  if (reads_.contains(span.data())) return true;
  std::int64_t held = static_cast<std::int64_t>(span.size());
  for (const auto& [begin, read] : reads_) held += read.bytes;
  if (held > limit_bytes_) return false;
  reads_.emplace(span.data(), start(span));
  return true;
}

c10::DataPtr SwapReader::take(std::span<const std::byte> span) {
  auto found = reads_.extract(span.data());
  Read read = found.empty() ? start(span) : std::move(found.mapped());
  wait_for(read);
  return std::move(*read.memory);
}

void SwapReader::forget() {
  for (auto& [begin, read] : reads_) wait_for(read);
  reads_.clear();
}

}  // namespace capstan::store
