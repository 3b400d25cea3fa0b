#include "capstan/base/own_process.h"

#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan {

void OwnProcess::check(const char* what) const {
  if (is_here()) return;
  throw ConfigError(
      {.what = fmt::format("{} was made by process {} and is used in process {}, which was forked "
                           "from it: its threads and connections are not there",
                           what, maker_, getpid()),
       .where = what,
       .fix = "use it in the process that made it, or make another one after the fork"});
}

}  // namespace capstan
