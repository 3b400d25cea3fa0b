// How a process ended, as a value, and the sentence that tells a person.
#pragma once

#include <cstdint>
#include <string>

namespace capstan::launch {

struct Ending {
  int exit_code = 0;  // of exit(); 0 where a signal ended it
  int signal = 0;     // 0: it exited by itself
  std::int64_t peak_rss_bytes = 0;
  bool out_of_memory = false;           // the kernel reports a kill for host memory meanwhile
  std::int64_t memory_limit_bytes = 0;  // what its host allows; 0: unknown
  std::string memory_limit_name;        // "the limit of cgroup /job", "the memory of this host"

  bool failed() const { return exit_code != 0 || signal != 0; }
  // What a shell would report: the exit code, or 128 + signal.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
  bool operator==(const Ending&) const = default;
};

// From waitpid()'s status.
Ending ending_from_status(int status);

// "exited with code 3", "was killed for host memory: …": follows the name of a process.
std::string describe(const Ending& ending);

}  // namespace capstan::launch
