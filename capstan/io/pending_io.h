// One read or write in flight, as a value that its owner holds.
#pragma once

#include <chrono>
#include <memory>

namespace capstan::io {

class Ring;
class RingCore;
struct Request;

// Keeps the file open and whatever the caller gave as `keep` alive until the transfer is done.
// Dropped unfinished, it leaves the transfer with its ring, which reports and drains it at close().
// Threads: one owner at a time. A handle may outlive its ring: by then it is done.
class [[nodiscard]] PendingIo {
 public:
  PendingIo() = default;  // nothing in flight, done
  PendingIo(PendingIo&& other) noexcept = default;
  PendingIo& operator=(PendingIo&& other) noexcept;
  ~PendingIo();

  // Throws IoError with the file, the offset and the errno of the first byte that failed.
  // Afterwards done() is true.
  void wait();
  // The same, but a disk that has not answered within `limit` is an IoError too; the transfer is
  // then still in flight, and so is its memory.
  void wait_at_most(std::chrono::milliseconds limit);
  bool done() const;

 private:
  friend class Ring;
  PendingIo(std::shared_ptr<RingCore> ring, std::shared_ptr<Request> request);
  void drop() noexcept;

  std::shared_ptr<RingCore> ring_;    // used only while the request is unfinished
  std::shared_ptr<Request> request_;  // shared with the ring while in flight
};

}  // namespace capstan::io
