#pragma once
#include <chrono>
#include <memory>

#include "comm/transport.h"

namespace cairn::comm {

// Must be the same on all ranks.
struct NcclOptions {
  bool one_rank = false;  // groups of one rank use NCCL too (for tests); otherwise they have nothing to do
  std::chrono::nanoseconds watch_every =
      std::chrono::milliseconds(200);  // how often a thread checks the devices while this rank's thread is busy
  std::chrono::nanoseconds close_deadline = std::chrono::seconds(5);  // for the last operations when a group ends
};

// Wraps a transport (net, local, mpi): CUDA tensors travel from device to device by NCCL, everything else by `host`. One device per rank,
// one rank per device. Throws if Cairn was built without CUDA or NCCL.
//
// A group creates its communicator at its first CUDA tensor: its first rank makes the NCCL id and sends it through `host`, without
// blocking. The collectives of a group run in order on a stream of their own, and so do the messages of each pair of ranks and direction. A
// failure, a lost rank or a deadline aborts the group's communicators. While the rank's thread is busy (in a kernel launch, or waiting for
// the device), a thread of the transport enforces the deadlines; lost ranks are noticed when the rank's thread waits here or starts an
// operation.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int device, NcclOptions options = {});

}  // namespace cairn::comm
