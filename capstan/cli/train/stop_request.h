// Ctrl-C and a polite kill, asked for between steps instead of interrupting one.
#pragma once

namespace capstan::cli::train {

// While it lives SIGINT and SIGTERM only leave a mark; after the first one they act as usual, so
// that a second Ctrl-C ends the program at once.
// Threads: make it before any other thread starts: they inherit the blocked signals.
class StopRequest {
 public:
  StopRequest();  // throws IoError when the system refuses
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  bool seen();

 private:
  void unblock();

  int fd_ = -1;
  bool seen_ = false;
};

}  // namespace capstan::cli::train
