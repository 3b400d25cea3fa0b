#include "capstan/base/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "capstan/base/guard.h"

namespace capstan {
namespace {

// What follows runs in a signal handler: no allocation, no locks, no library that has them.

using Line = std::array<char, 4608>;  // of /proc/self/maps: the longest path and what is before it

void say(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(kExitUserError);
}

// Reads up to the end of a line, which it leaves out; false at the end of the file.
bool next_line(int file, Line& line) {
  std::size_t length = 0;
  char letter = 0;
  while (read(file, &letter, 1) == 1 && letter != '\n') {
    if (length + 1 < line.size()) line[length++] = letter;
  }
  line[length] = 0;
  return length > 0;
}

std::uintptr_t hex_number(const char*& at) {
  std::uintptr_t number = 0;
  for (;; ++at) {
    if (*at >= '0' && *at <= '9') {
      number = number * 16 + static_cast<std::uintptr_t>(*at - '0');
    } else if (*at >= 'a' && *at <= 'f') {
      number = number * 16 + static_cast<std::uintptr_t>(*at - 'a' + 10);
    } else {
      return number;
    }
  }
}

// The file that is mapped there, in `line`; null: none.
const char* file_at(std::uintptr_t address, Line& line) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  while (maps >= 0 && next_line(maps, line)) {
    const char* at = line.data();
    const std::uintptr_t begin = hex_number(at);
    if (*at == '-') ++at;
    const std::uintptr_t end = hex_number(at);
    if (begin <= address && address < end) return strchr(at, '/');
  }
  return nullptr;
}

void on_bus_error(int signal_number, siginfo_t* info, void* /*context*/) {
  Line line;
  const char* const file = file_at(reinterpret_cast<std::uintptr_t>(info->si_addr), line);
  if (file == nullptr) {
    signal(signal_number, SIG_DFL);  // not ours to explain: the same access ends the program
    return;
  }
  say("error: a memory-mapped file could not be read or written (SIGBUS)\n  where: ");
  say(file);
  say("\n  fix:   check that disk (dmesg, df), then resume from the last checkpoint\n");
  _exit(kExitUserError);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace capstan
