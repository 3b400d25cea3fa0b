#include "capstan/launch/child.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

struct Pipe {
  Fd read;
  Fd write;
};

[[noreturn]] void fail_start(const Process& process, const std::string& step, int error) {
  const bool too_many = error == EMFILE || error == EAGAIN || error == ENFILE;
  throw IoError(
      {.what = fmt::format("cannot start {}: {}: {}", process.name, step, std::strerror(error)),
       .where = process.argv.front(),
       .fix = too_many ? "raise the limits of open files and processes (ulimit -n, ulimit -u)"
                       : "check that the program exists and is executable"});
}

Pipe make_pipe(const Process& process) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_start(process, "pipe", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// All that the child needs, prepared before fork(): after it only system calls are safe.
struct Prepared {
  explicit Prepared(const Process& process) : numa_node(process.numa_node) {
    for (const std::string& word : process.argv) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    for (const auto& [name, value] : process.env)
      env_text.push_back(fmt::format("{}={}", name, value));
    for (std::string& entry : env_text) env.push_back(entry.data());
    env.push_back(nullptr);
    CPU_ZERO(&cpus);
    for (const int cpu : process.cpus) {
      if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &cpus);
    }
    bind = !process.cpus.empty();
  }

  std::vector<char*> argv;
  std::vector<std::string> env_text;
  std::vector<char*> env;
  cpu_set_t cpus;
  bool bind = false;
  int numa_node;
};

// Preferred, not strict: a rank that offloads more than one node's memory must not be killed.
void prefer_memory_of(int numa_node) {
  constexpr int kMpolPreferred = 1;
  constexpr int kMaskBits = 1024;
  std::array<unsigned long, kMaskBits / (8 * sizeof(unsigned long))> mask{};
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  if (numa_node < 0 || numa_node >= kMaskBits) return;
  mask[static_cast<std::size_t>(numa_node / kWordBits)] = 1UL << (numa_node % kWordBits);
  syscall(SYS_set_mempolicy, kMpolPreferred, mask.data(), kMaskBits);
}

struct ChildFds {
  int input;
  int output;
  int error;
  int report;  // errno goes here when exec fails; closed by a successful exec
};

[[noreturn]] void become(const Prepared& prepared, const ChildFds& fds, pid_t parent,
                         const sigset_t& mask, Guard& guard) {
  setsid();
  guard.add(getpid());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the launcher died before the line above
  dup2(fds.input, STDIN_FILENO);
  dup2(fds.output, STDOUT_FILENO);
  dup2(fds.error, STDERR_FILENO);
  if (prepared.bind) {
    sched_setaffinity(0, sizeof prepared.cpus, &prepared.cpus);
    prefer_memory_of(prepared.numa_node);
  }
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &standard, nullptr);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execve(prepared.argv[0], prepared.argv.data(), prepared.env.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(fds.report, &error, sizeof error);
  _exit(127);
}

}  // namespace

Child start_child(const Process& process, const sigset_t& mask, Guard& guard) {
  const Prepared prepared(process);
  Pipe output = make_pipe(process);
  Pipe error = make_pipe(process);
  Pipe report = make_pipe(process);
  Pipe input;
  if (process.channel == Channel::agent_on_pipe) {
    input = make_pipe(process);
  } else {
    input.read = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!input.read.is_open()) fail_start(process, "/dev/null", errno);
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail_start(process, "fork", errno);
  if (pid == 0) {
    become(prepared, {input.read.get(), output.write.get(), error.write.get(), report.write.get()},
           parent, mask, guard);
  }
  report.write.reset();
  int failure = 0;
  if (read(report.read.get(), &failure, sizeof failure) == sizeof failure) {
    waitpid(pid, nullptr, 0);
    guard.remove(pid);
    fail_start(process, "exec", failure);
  }
  Child child{pid, std::move(input.write), std::move(output.read), std::move(error.read)};
  for (const int fd : {child.input.get(), child.output.get(), child.error.get()}) {
    if (fd >= 0) set_nonblocking(fd);
  }
  return child;
}

}  // namespace capstan::launch
