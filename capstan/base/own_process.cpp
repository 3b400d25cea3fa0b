#include "capstan/base/own_process.h"

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan {

void OwnProcess::check(const char* what) const {
  if (is_here()) return;
  throw ConfigError(
      {.what = fmt::format("{} was created by process {} but is used in process {}, a fork of it "
                           "that does not have its threads and connections",
                           what, maker_, getpid()),
       .where = what,
       .fix = "use it in the process that created it, or create another one after the fork"});
}

}  // namespace capstan
