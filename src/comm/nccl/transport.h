#pragma once
#include <chrono>
#include <memory>

#include "comm/transport.h"

namespace cairn::comm {

// The same on all ranks.
struct NcclOptions {
  bool one_rank = false;  // groups of one rank go through NCCL too, where else they have nothing to do: for tests
  std::chrono::nanoseconds watch_every = std::chrono::milliseconds(200);  // looks at devices while this rank's thread is busy elsewhere
  std::chrono::nanoseconds close_deadline = std::chrono::seconds(5);      // for the last messages to leave when a group ends
};

// A transport that does all that `host` does (net, local, mpi), and lets the CUDA tensors of a group travel from device to device by NCCL.
// Each rank has one device, each device one rank. Throws where Cairn was built without CUDA or NCCL.
//
// A group meets on its first CUDA tensor: its first rank makes NCCL's id and sends it through `host`; nothing blocks meanwhile. Collectives
// of a group run in order on a stream of their own; messages between two ranks on another one for each direction. A failure, a loss, a
// deadline stops what the devices do for the group. While the rank's thread is busy elsewhere (in a kernel launch, or waiting for the
// device), a thread of the transport sees to the deadlines; losses are seen when the rank's thread waits here or starts something.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int device, NcclOptions options = {});

}  // namespace cairn::comm
