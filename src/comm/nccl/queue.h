#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "comm/device_group.h"
#include "comm/nccl/transport.h"

struct CUevent_st;
struct CUstream_st;
struct ncclComm;

namespace cairn::comm {

class NcclQueue;

// What all lanes of a transport share. A lane is used by the transport's thread and looked at by one that watches, both under `lock`.
struct NcclContext {
  int device = 0;
  NcclOptions options = {};
  base::RealClock clock = {};  // devices do not follow virtual time
  std::mutex lock = {};
  std::vector<NcclQueue*> queues = {};
};

// A moment on a stream of the current device.
class NcclEvent {
 public:
  NcclEvent();
  ~NcclEvent();
  NcclEvent(const NcclEvent&) = delete;
  NcclEvent& operator=(const NcclEvent&) = delete;
  void record(CUstream_st* stream);
  bool passed() const;
  void hold_up(CUstream_st* stream) const;  // what comes on this stream from now on waits for it

 private:
  CUevent_st* event_ = nullptr;
};

// One communicator among some ranks and the stream on which its jobs run, one after the other. It meets, connects and issues step by step,
// as advance is called; nothing blocks, but for the end, which has a deadline. After a failure it is stopped for good.
class NcclQueue {
 public:
  // `hello` is on the message that carries NCCL's id from the first of the ranks to the others.
  NcclQueue(NcclContext& context, Transport& host, std::vector<int> ranks, const Envelope& hello);
  ~NcclQueue();
  NcclQueue(const NcclQueue&) = delete;
  NcclQueue& operator=(const NcclQueue&) = delete;

  std::shared_ptr<DeviceJob> add(DeviceCall call);
  bool advance();
  // By the watching thread, which holds the lock: stops the device where a job is overdue or NCCL reports an error.
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
  void step(void (NcclQueue::*part)());  // a failure in it is the lane's
  void fail(Error error);
  void stop();         // the device
  void tell_failed();  // those who wait for a job
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
  std::deque<std::shared_ptr<Job>> jobs_;  // not done, in order: queued ones, then waiting ones
  std::optional<Error> error_;
  std::chrono::nanoseconds failed_at_{};
};

}  // namespace cairn::comm
