#include "capstan/base/error.h"
#include "capstan/launch/cores.h"

namespace capstan::launch {

std::vector<Core> machine_cores() {
  throw ConfigError({.what = "this build cannot bind cores: it was made without hwloc",
                     .where = "--bind_cores_to_rank",
                     .fix = "apt-get install libhwloc-dev and build again"});
}

}  // namespace capstan::launch
