#include <algorithm>
#include <string_view>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include "comm/collectives/layout.h"
#include "comm/nccl/queue.h"

namespace cairn::comm {
namespace {

ncclDataType_t nccl(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return ncclFloat32;
    case Dtype::f64:
      return ncclFloat64;
    case Dtype::bf16:
      return ncclBfloat16;
    case Dtype::f16:
      return ncclFloat16;
    case Dtype::i32:
      return ncclInt32;
    case Dtype::i64:
      return ncclInt64;
    case Dtype::u8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t nccl(Reduce reduce) { return reduce == Reduce::sum ? ncclSum : reduce == Reduce::max ? ncclMax : ncclMin; }

// The NCCL calls of one operation, in one ncclGroup.
class Calls {
 public:
  Calls(const DeviceCall& call, ncclComm_t communicator, cudaStream_t stream, int me, int n)
      : kind_(call.kind), sends_(call.sends), on_(call.arguments), communicator_(communicator), stream_(stream), me_(me), n_(n) {}

  ncclResult_t make() {
    note(ncclGroupStart());
    each();
    note(ncclGroupEnd());  // also after an error: it clears the group
    return result_;
  }

 private:
  void each() {
    switch (kind_) {
      case OperationKind::all_reduce:
        return note(ncclAllReduce(on_.in.data, on_.out.data, count(on_.out), type(on_.out), nccl(on_.reduce), communicator_, stream_));
      case OperationKind::reduce:
        return note(
            ncclReduce(on_.in.data, on_.out.data, count(on_.out), type(on_.out), nccl(on_.reduce), on_.root, communicator_, stream_));
      case OperationKind::broadcast:
        return note(ncclBroadcast(on_.out.data, on_.out.data, count(on_.out), type(on_.out), on_.root, communicator_, stream_));
      case OperationKind::all_gather:
        return all_gather();
      case OperationKind::reduce_scatter:
        return reduce_scatter();
      case OperationKind::gather:
        send(on_.root, on_.in.data, on_.counts[me_], on_.in.dtype);
        if (me_ == on_.root) receive_parts(on_.counts);
        return;
      case OperationKind::scatter:
        if (me_ == on_.root) send_parts(on_.counts);
        return receive(on_.root, on_.out.data, on_.counts[me_], on_.out.dtype);
      case OperationKind::all_to_all:
        send_parts(on_.in_counts);
        return receive_parts(on_.counts);
      case OperationKind::send_recv:
        return sends_ ? send(1, on_.out.data, on_.out.count, on_.out.dtype) : receive(0, on_.out.data, on_.out.count, on_.out.dtype);
      case OperationKind::coded_all_reduce:
      case OperationKind::all_scan:
      case OperationKind::barrier:
        return note(ncclInvalidUsage);  // handled by the host
    }
  }

  bool even() const { return std::adjacent_find(on_.counts.begin(), on_.counts.end(), std::not_equal_to<>()) == on_.counts.end(); }

  // NCCL has even parts only; uneven ones are one broadcast or reduction per rank.
  void all_gather() {
    const ncclDataType_t t = type(on_.in);
    if (even()) return note(ncclAllGather(on_.in.data, on_.out.data, count(on_.in), t, communicator_, stream_));
    const std::vector<int64_t> begin = starts(on_.counts);
    for (int rank = 0; rank < n_; ++rank) {
      if (on_.counts[rank] == 0) continue;
      void* part = at_element(on_.out, begin[rank]);
      note(ncclBroadcast(rank == me_ ? on_.in.data : part, part, static_cast<size_t>(on_.counts[rank]), t, rank, communicator_, stream_));
    }
  }

  void reduce_scatter() {
    const ncclDataType_t t = type(on_.in);
    const ncclRedOp_t reduce = nccl(on_.reduce);
    if (even()) return note(ncclReduceScatter(on_.in.data, on_.out.data, count(on_.out), t, reduce, communicator_, stream_));
    const std::vector<int64_t> begin = starts(on_.counts);
    for (int rank = 0; rank < n_; ++rank) {
      if (on_.counts[rank] == 0) continue;
      void* result = rank == me_ ? on_.out.data : nullptr;
      note(ncclReduce(at_element(on_.in, begin[rank]), result, static_cast<size_t>(on_.counts[rank]), t, reduce, rank, communicator_,
                      stream_));
    }
  }

  void send_parts(const std::vector<int64_t>& counts) {
    const std::vector<int64_t> begin = starts(counts);
    for (int rank = 0; rank < n_; ++rank) send(rank, at_element(on_.in, begin[rank]), counts[rank], on_.in.dtype);
  }

  void receive_parts(const std::vector<int64_t>& counts) {
    const std::vector<int64_t> begin = starts(counts);
    for (int rank = 0; rank < n_; ++rank) receive(rank, at_element(on_.out, begin[rank]), counts[rank], on_.out.dtype);
  }

  void send(int to, const void* data, int64_t elements, Dtype dtype) {
    if (elements > 0) note(ncclSend(data, static_cast<size_t>(elements), nccl(dtype), to, communicator_, stream_));
  }

  void receive(int from, void* data, int64_t elements, Dtype dtype) {
    if (elements > 0) note(ncclRecv(data, static_cast<size_t>(elements), nccl(dtype), from, communicator_, stream_));
  }

  static size_t count(const Span& x) { return static_cast<size_t>(x.count); }
  static ncclDataType_t type(const Span& x) { return nccl(x.dtype); }

  // Keeps the first error; in-progress counts less than an error.
  void note(ncclResult_t result) {
    if (result_ == ncclSuccess || (result_ == ncclInProgress && result != ncclSuccess)) result_ = result;
  }

  OperationKind kind_;
  bool sends_;
  const Arguments& on_;
  ncclComm_t communicator_;
  cudaStream_t stream_;
  int me_, n_;
  ncclResult_t result_ = ncclSuccess;
};

}  // namespace

bool issue(const DeviceCall& call, ncclComm* communicator, CUstream_st* stream, int me, int n) {
  const ncclResult_t result = Calls(call, communicator, stream, me, n).make();
  if (result != ncclSuccess && result != ncclInProgress) throw nccl_error(result, communicator);
  return result == ncclSuccess;
}

Error nccl_error(int result, ncclComm* communicator) {
  const auto code = static_cast<ncclResult_t>(result);
  const char* more = ncclGetLastError(communicator);
  if (code == ncclInvalidUsage && more && std::string_view(more).find("Duplicate GPU") != std::string_view::npos)
    return {Error::Kind::bad_input, fmt::format("transport nccl: two ranks use one GPU. Start one rank per GPU, or use --transport net. "
                                                "NCCL says: {}",
                                                more)};
  const bool elsewhere = code == ncclRemoteError || code == ncclSystemError;
  return {elsewhere ? Error::Kind::lost_peer : Error::Kind::broken_invariant,
          fmt::format("NCCL: {}{}{} (NCCL_DEBUG=INFO tells more)", ncclGetErrorString(code), more && *more ? ": " : "", more ? more : "")};
}

}  // namespace cairn::comm
