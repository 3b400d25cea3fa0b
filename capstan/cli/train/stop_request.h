// Ctrl-C and a polite kill: heard at once, acted on where a run can end in order.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace capstan::cli::train {

// While it lives SIGINT, SIGTERM and SIGHUP come to a thread of its own, whatever the others do.
// Before defer() they end the program as usual: nothing has been trained yet. After it the first
// one only leaves a mark, for the loop to see between steps, and a second one ends the program at
// once. So does a launcher's word that another rank has failed: the step will never end.
// Threads: make it before any other thread starts: they inherit the blocked signals. seen() and
//          defer() from anywhere.
class StopRequest {
 public:
  // `told` is called, on that thread, when the first signal leaves its mark. Throws IoError when
  // the system refuses.
  explicit StopRequest(std::function<void()> told = [] {});
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  void defer() { deferring_ = true; }
  bool seen() const { return number() != 0; }
  int number() const { return number_; }  // the signal that left the mark; 0: none

 private:
  void listen();

  std::function<void()> told_;
  int signals_ = -1;
  int closing_ = -1;  // readable when the thread shall end
  std::atomic<bool> deferring_{false};
  std::atomic<int> number_{0};
  std::thread thread_;
};

}  // namespace capstan::cli::train
