// Sums the ranks over MPI, which works only if the launcher made these processes one MPI world.
#include <cstdio>
#include <cstdlib>

#include <mpi.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("mpi rank %d of %d, sum %d\n", rank, size, sum);
  std::fflush(stdout);
  // With an argument, that rank fails after the sum while the others wait for it forever.
  if (argc > 1) {
    if (std::stoi(argv[1]) == rank) _Exit(9);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return 0;
}
