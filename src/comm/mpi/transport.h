#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/transport.h"

namespace cairn::comm {

// Must be the same on all ranks.
struct MpiOptions {
  std::chrono::nanoseconds meet_deadline = std::chrono::seconds(120);  // for all ranks to arrive
  int64_t inline_bytes = 8 << 10;         // eager limit: a longer message waits at its sender until a receive asks for it
  int64_t part_bytes = int64_t{1} << 30;  // at most this many bytes per MPI call, whose counts are ints
};

// A transport among the ranks of MPI_COMM_WORLD, as mpirun or Slurm's srun started them. It is a collective call: all ranks make it, in the
// same order; each call gives a separate world. Only the thread that initialised MPI may call and use it.
//
// Initialises MPI if nobody has, and then finalises it when the process ends (return from main, exit, quick_exit). Throws if Cairn was
// built without MPI. A rank that dies takes the whole job with it, because mpirun ends the others; a rank that calls fail() is reported.
std::unique_ptr<Transport> make_mpi_transport(MpiOptions options = {});
bool has_mpi();  // Cairn was built with it

}  // namespace cairn::comm
