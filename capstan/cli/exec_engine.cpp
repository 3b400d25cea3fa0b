#include "capstan/cli/exec_engine.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/launch/machine.h"

namespace capstan::cli {

std::filesystem::path engine_path() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw ConfigError({.what = "cannot find this program's own folder: " + error.message(),
                       .where = "/proc/self/exe",
                       .fix = "mount /proc"});
  }
  std::filesystem::path cuda = self.parent_path() / "capstan-engine-cuda";
  if (std::filesystem::exists(cuda, error) && !launch::this_machine().devices.empty()) return cuda;
  return self.parent_path() / "capstan-engine";
}

std::string engine_fix() {
  return "build it on a machine with libtorch: make build, or make build PYTHON=/path/to/python3 "
         "SETUP=none with a Python that has torch";
}

void exec_engine(const std::vector<std::string>& args) {
  const std::string program = engine_path().string();
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(program.c_str()));  // execv takes char*, and changes nothing
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(program.c_str(), argv.data());
  throw ConfigError(
      {.what = fmt::format("cannot start the engine: {}", std::generic_category().message(errno)),
       .where = program,
       .fix = engine_fix()});
}

}  // namespace capstan::cli
