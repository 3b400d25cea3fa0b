#include "capstan/base/error.h"
#include "capstan/comm/mpi/mpi.h"

namespace capstan::comm {

std::shared_ptr<Mpi> start_mpi(const RankEnv&, MpiOptions) {
  throw ConfigError({.what = "this build has no MPI",
                     .where = "comm: backend mpi",
                     .fix = "install an MPI (apt-get install libopenmpi-dev openmpi-bin) and build "
                            "with -DCAPSTAN_MPI=ON"});
}

}  // namespace capstan::comm
