#include "capstan/io/ring.h"

#include <utility>

#include "capstan/io/request.h"
#include "capstan/io/ring_core.h"

namespace capstan::io {

Ring::Ring(const Options& options, Logger& logger, IoPath wanted)
    : Ring(options, logger, open_queue(options, wanted)) {}

Ring::Ring(const Options& options, Logger& logger, OpenedQueue opened)
    : logger_(logger),
      path_(opened.path),
      why_not_uring_(std::move(opened.why_not_uring)),
      close_patience_(options.close_patience),
      core_(std::make_shared<RingCore>(options, std::move(opened.queue))) {
  collector_ = std::thread([core = core_] { core->collect(); });
}

Ring::~Ring() {
  try {
    close();
  } catch (const std::exception&) {
    // Only the logger can throw here, after everything has been drained.
    return;
  }
}

PendingIo Ring::read(const File& file, std::int64_t offset, std::span<std::byte> into, Keep keep) {
  return start(std::make_shared<Request>(OpKind::read, file.descriptor(), offset, into.data(),
                                         std::ssize(into), std::move(keep)));
}

PendingIo Ring::write(const File& file, std::int64_t offset, std::span<const std::byte> from,
                      Keep keep) {
  // One request type serves both ways; a write never stores through this pointer.
  auto* data = const_cast<std::byte*>(from.data());
  return start(std::make_shared<Request>(OpKind::write, file.descriptor(), offset, data,
                                         std::ssize(from), std::move(keep)));
}

PendingIo Ring::start(std::shared_ptr<Request> request) {
  core_->start(request);
  return {core_, std::move(request)};
}

void Ring::close() {
  const bool ended = core_->close(close_patience_);
  if (collector_.joinable()) {
    if (ended) {
      collector_.join();
    } else {
      collector_.detach();  // it holds what the disk still may touch
    }
  }
  for (const std::string& text : core_->take_notes()) logger_.log(LogLevel::warning, text);
}

}  // namespace capstan::io
