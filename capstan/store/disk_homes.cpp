#include "capstan/store/disk_homes.h"

#include <utility>

#include "capstan/base/error.h"

namespace capstan::store {

StreamedHome::StreamedHome(const SwapOptions& files, StreamOptions options, Ledger& ledger,
                           profile::Recorder* recorder)
    : files_(files),
      pool_(Pool::of_disk(ledger, files_)),
      options_(std::move(options)),
      recorder_(recorder) {}

void StreamedHome::ahead(std::vector<Spans> next) {
  if (!stream_.has_value()) {
    ring_.emplace(options_.io, silence_);
    stream_.emplace(files_, *ring_, options_.buffer_count, recorder_);
  }
  stream_->start(std::move(next));
}

Taken StreamedHome::take(const Spans& spans) {
  if (!stream_.has_value() || !stream_->next_is(spans)) {
    throw InternalError({.what = "state was taken from a disk that nobody asked for before",
                         .where = "StreamedHome::take",
                         .fix = "name it in ahead(), in the order of take()"});
  }
  return {.at = stream_->next(), .memory = {}};
}

void StreamedHome::behind() {
  if (stream_.has_value()) stream_->write_used();
}

void StreamedHome::settle() {
  if (stream_.has_value()) stream_->finish();
}

ReadHome::ReadHome(const SwapOptions& files, const ReadAhead& options, Pool& host, Ledger& ledger,
                   profile::Recorder* recorder)
    : files_(files),
      pool_(Pool::of_disk(ledger, files_)),
      reader_(files_, host, options, recorder) {}

void ReadHome::ahead(std::vector<Spans> next) {
  for (const Spans& spans : next) {
    if (!reader_.read_ahead(spans.front())) return;
  }
}

Taken ReadHome::take(const Spans& spans) {
  c10::DataPtr memory = reader_.take(spans.front());
  return {.at = {static_cast<std::byte*>(memory.get())}, .memory = std::move(memory)};
}

}  // namespace capstan::store
