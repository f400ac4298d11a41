#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/transport.h"

namespace cairn::comm {

// The same on all ranks.
struct MpiOptions {
  std::chrono::nanoseconds meet_deadline = std::chrono::seconds(120);  // for all ranks to be there
  int64_t inline_bytes = 8 << 10;         // a message up to this travels with its header, a longer one when its receiver has a place for it
  int64_t part_bytes = int64_t{1} << 30;  // what one call of MPI is given at most: its counts are ints
};

// The ranks of MPI_COMM_WORLD, as mpirun (or Slurm's srun) started them. All ranks must call it, as often and in the same order: each time
// gives a world of its own. To be called and used on the thread that initialised MPI. Initialises MPI where nobody has; then it is also
// finalised, when the process ends by returning from main, by exit or by quick_exit. Throws where Cairn was built without MPI.
//
// A rank that dies without a word takes the job with it, since mpirun then ends all others. What one says by fail(), they hear.
std::unique_ptr<Transport> make_mpi_transport(MpiOptions options = {});
bool has_mpi();  // Cairn was built with it

}  // namespace cairn::comm
