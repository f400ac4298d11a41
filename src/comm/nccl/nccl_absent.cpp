// Replaces the *_cuda.cpp sources in builds without CUDA or NCCL.
#include "base/error.h"
#include "comm/nccl/transport.h"

namespace cairn::comm {

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport>, int, NcclOptions) {
  throw Error(Error::Kind::bad_input,
              "transport nccl: Cairn was built without NCCL; configure with -DCAIRN_CUDA=ON where nvcc, nccl.h and libnccl are "
              "(Python's nvidia-nccl package or Debian's libnccl-dev), then build again");
}

}  // namespace cairn::comm
