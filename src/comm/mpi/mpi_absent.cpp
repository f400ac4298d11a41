// Replaces transport.cpp in builds without MPI.
#include "base/error.h"
#include "comm/mpi/transport.h"

namespace cairn::comm {

std::unique_ptr<Transport> make_mpi_transport(MpiOptions) {
  throw Error(
      Error::Kind::bad_input,
      "transport mpi: Cairn was built without MPI. Install it (Debian: apt-get install libopenmpi-dev openmpi-bin) and build again.");
}

bool has_mpi() { return false; }

}  // namespace cairn::comm
