#pragma once
#include "base/error.h"
#include "comm/device_group.h"

struct CUstream_st;
struct ncclComm;

namespace cairn::comm {

// Hands one operation to NCCL: rank `me` of `n` in the communicator. Whether it is on the stream; if not yet, the communicator says when
// (ncclCommGetAsyncError). Throws what NCCL says. Of a send_recv the sender is rank 0 and the receiver rank 1.
bool issue(const DeviceCall& call, ncclComm* communicator, CUstream_st* stream, int me, int n);

// `result` is an ncclResult_t.
Error nccl_error(int result, ncclComm* communicator);

}  // namespace cairn::comm
