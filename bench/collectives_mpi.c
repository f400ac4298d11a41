/* The Open MPI side of `cairn bench collectives`: prints "operation bytes microseconds" for each case, the median on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* only = argc > 1 ? argv[1] : "";
  const char* operations[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  const long sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  for (int o = 0; o < 4; ++o) {
    if (*only && strcmp(only, operations[o]) != 0) continue;
    for (int s = 0; s < 5; ++s) {
      const long bytes = sizes[s], count = bytes / 4, share = count / ranks;
      const int calls = bytes <= 65536 ? 1000 : bytes <= 1 << 20 ? 200 : 11, unused = calls / 5 + 1;
      float* x = aligned_alloc(4096, bytes);
      float* y = aligned_alloc(4096, bytes);
      double* seconds = malloc(sizeof(double) * calls);
      memset(y, 0, bytes);
      for (int call = -unused; call < calls; ++call) {
        for (long i = 0; i < count; ++i) x[i] = (float)(rank + call); /* or small sizes would be read from the owner's cache */
        MPI_Barrier(MPI_COMM_WORLD);
        const double begun = MPI_Wtime();
        if (o == 0) MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (o == 1) MPI_Allgather(x, share, MPI_FLOAT, y, share, MPI_FLOAT, MPI_COMM_WORLD);
        if (o == 2) MPI_Reduce_scatter_block(x, y, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (o == 3) MPI_Alltoall(x, share, MPI_FLOAT, y, share, MPI_FLOAT, MPI_COMM_WORLD);
        const double ended = MPI_Wtime();
        if (call >= 0) seconds[call] = ended - begun;
      }
      qsort(seconds, calls, sizeof(double), by_value);
      if (rank == 0) printf("%s %ld %.3f\n", operations[o], bytes, seconds[calls / 2] * 1e6);
      free(x);
      free(y);
      free(seconds);
    }
  }
  MPI_Finalize();
  return 0;
}
