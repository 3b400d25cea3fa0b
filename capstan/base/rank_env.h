// Who this process is among its peers, read from the environment that a launcher left:
// capstan launch, torchrun, mpirun, srun, or nobody.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace capstan {

struct RankEnv {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;   // 0: none was given
  std::string launcher;  // "capstan", "torchrun", "mpirun", "slurm", or empty for a single process
};

using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

// The real environment of this process.
GetEnv process_env();

// Throws ConfigError when variables are there but make no sense together (rank outside the world).
RankEnv read_rank_env(const GetEnv& get);

}  // namespace capstan
