// Prints what base/rank_env.h makes of this process's environment, one line of name=value pairs.
#include <cstdio>

#include <fmt/format.h>

#include "capstan/base/guard.h"
#include "capstan/base/rank_env.h"

namespace {

int print(int, char**) {
  const capstan::RankEnv env = capstan::read_rank_env(capstan::process_env());
  const std::string line = fmt::format(
      "rank={} world_size={} local_rank={} local_world_size={} node_rank={} node_count={} "
      "master_addr={} master_port={} mpi_started={} launcher={}\n",
      env.rank, env.world_size, env.local_rank, env.local_world_size, env.node_rank, env.node_count,
      env.master_addr, env.master_port, env.mpi_started, env.launcher);
  std::fputs(line.c_str(), stdout);
  return 0;
}

void report(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

}  // namespace

int main(int argc, char** argv) { return capstan::run_guarded<report>(print, argc, argv); }
