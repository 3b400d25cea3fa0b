#include "capstan/io/pending_io.h"

#include <optional>
#include <utility>

#include "capstan/io/request.h"
#include "capstan/io/ring_core.h"

namespace capstan::io {

PendingIo::PendingIo(std::shared_ptr<RingCore> ring, std::shared_ptr<Request> request)
    : ring_(std::move(ring)), request_(std::move(request)) {}

PendingIo& PendingIo::operator=(PendingIo&& other) noexcept {
  if (this != &other) {
    drop();
    ring_ = std::move(other.ring_);
    request_ = std::move(other.request_);
  }
  return *this;
}

PendingIo::~PendingIo() { drop(); }

void PendingIo::drop() noexcept {
  if (!done()) ring_->adopt(*request_);
  request_.reset();
  ring_.reset();
}

bool PendingIo::done() const { return request_ == nullptr || request_->done; }

void PendingIo::wait() { wait_at_most(std::chrono::milliseconds::max()); }

void PendingIo::wait_at_most(std::chrono::milliseconds limit) {
  if (!done()) ring_->await(*request_, limit);
  if (request_ == nullptr) return;
  if (const std::optional<IoError>& failure = request_->failure; failure) throw IoError(*failure);
}

}  // namespace capstan::io
