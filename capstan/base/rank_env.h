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
  int master_port = 0;       // 0: none was given
  bool mpi_started = false;  // mpirun or srun --mpi=… started us: MPI_Init finds these same peers
  std::string launcher;      // "capstan", "torchrun", "mpirun", "slurm", "environment" (somebody
                             // else's RANK and WORLD_SIZE), or empty for a single process
};

// Names the folder where every rank of a job leaves its notes, for `capstan doctor`.
inline constexpr const char* kNotesVariable = "CAPSTAN_NOTES";

// Empty values count as absent: `RANK= program` is how a shell unsets a variable for one command.
using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

// The real environment of this process.
GetEnv process_env();

// The innermost launcher wins: a complete RANK, WORLD_SIZE, LOCAL_RANK (torchrun, capstan), then
// the MPI variables, then those of a SLURM step. Throws ConfigError when variables are there but
// make no sense (no number, a rank outside its world, half of a pair).
RankEnv read_rank_env(const GetEnv& get);

}  // namespace capstan
