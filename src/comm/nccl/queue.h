#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/device_group.h"
#include "comm/nccl/transport.h"

struct CUevent_st;
struct CUstream_st;
struct ncclComm;

namespace cairn::comm {

class NcclQueue;

// Shared by all queues of a transport. The transport's thread uses a queue, the watching thread checks it, both under `lock`.
struct NcclContext {
  int device = 0;
  NcclOptions options = {};
  base::RealClock clock = {};  // devices run in real time
  std::mutex lock = {};
  std::vector<NcclQueue*> queues = {};
};

// A CUDA event of the current device.
class NcclEvent {
 public:
  NcclEvent();
  ~NcclEvent();
  NcclEvent(const NcclEvent&) = delete;
  NcclEvent& operator=(const NcclEvent&) = delete;
  void record(CUstream_st* stream);
  bool passed() const;
  void block_stream(CUstream_st* stream) const;  // later work of this stream waits for it

 private:
  CUevent_st* event_ = nullptr;
};

// One NCCL communicator and the stream on which its jobs run in order. advance() drives it through its phases without blocking: exchange
// the id, connect, then issue job after job. Only the destructor waits, with a deadline. After a failure it is aborted for good.
class NcclQueue {
 public:
  // `hello` is the envelope of the message that carries the NCCL id from the first rank to the others.
  NcclQueue(NcclContext& context, Transport& host, std::vector<int> ranks, const Envelope& hello);
  ~NcclQueue();
  NcclQueue(const NcclQueue&) = delete;
  NcclQueue& operator=(const NcclQueue&) = delete;

  std::shared_ptr<DeviceJob> add(DeviceCall call);
  bool advance();
  // Called by the watching thread, which holds the lock: aborts if a job is overdue or NCCL reports an error.
  void watch();

 private:
  struct Job;
  struct Id;
  enum class Phase : uint8_t { exchanging_id, connecting, open, issuing, failed };

  void exchange_id();
  void connect();
  void issue_next();
  void queued();
  void look();
  void step(void (NcclQueue::*part)());  // an exception in it fails the queue
  void fail(Error error);
  void stop();         // aborts the communicator
  void tell_failed();  // the waiting jobs
  void cancel(Job& job);
  void close();
  int async_state() const;  // an ncclResult_t

  NcclContext& context_;
  Transport& host_;
  std::vector<int> ranks_;
  int me_;
  Envelope hello_;
  std::unique_ptr<Id> id_;
  std::vector<Completion> id_exchange_;
  Phase phase_ = Phase::exchanging_id;
  ncclComm* communicator_ = nullptr;
  CUstream_st* stream_ = nullptr;
  std::deque<std::shared_ptr<Job>> jobs_;  // unfinished, in order: queued ones, then waiting ones
  std::optional<Error> error_;
  std::chrono::nanoseconds failed_at_{};
};

// Issues one operation to NCCL (issue_cuda.cpp): rank `me` of `n` in the communicator. True: it is on the stream; false: not yet, and
// ncclCommGetAsyncError tells when. Throws NCCL's error. Of a send_recv the sender is rank 0 and the receiver rank 1.
bool issue(const DeviceCall& call, ncclComm* communicator, CUstream_st* stream, int me, int n);

// `result` is an ncclResult_t.
Error nccl_error(int result, ncclComm* communicator);

}  // namespace cairn::comm
