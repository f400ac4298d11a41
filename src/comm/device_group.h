#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/collectives/collectives.h"
#include "comm/envelope.h"

namespace cairn::comm {

// One operation of a group on device memory.
struct DeviceCall {
  OperationKind kind = OperationKind::barrier;
  bool sends = false;  // of a send_recv: this rank sends
  Arguments arguments = {};
  void* after = nullptr;                // the stream that produces the inputs: the operation runs after what is on it now
  std::chrono::nanoseconds deadline{};  // after which the device operation is aborted, even if nobody waits
  std::string name = "";                // for errors: "all_reduce of w, 12 f32"
};

// An operation given to the device. Used by the transport's thread.
class DeviceJob {
 public:
  enum class State : uint8_t { waiting, queued, done, failed };

  virtual ~DeviceJob() = default;
  virtual State state() const = 0;
  virtual Error error() const = 0;  // of a failed one
  // Of a queued job: makes later work of this stream wait for it.
  virtual void order(void* stream) = 0;
  // Aborts it, and with it all device operations of the group, unless it is done. Afterwards nothing touches its memory.
  virtual void cancel() noexcept = 0;
};

// Device-to-device communication of a group (NCCL). Collectives run in the order of their start; point-to-point jobs of a pair of ranks run
// in an order of their own. Memory must stay valid until a job is done or cancelled.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual int device() const = 0;  // this rank's device index
  virtual std::shared_ptr<DeviceJob> start(DeviceCall call) = 0;
  // Polls the jobs and starts the next ones; never waits. Returns whether any is in flight.
  virtual bool advance() = 0;
};

// Makes the device group of these ranks, this one included; null: their tensors travel through host memory. All of them get the same
// answer. `group` is the group's id; `host` carries the members' set-up messages.
using DeviceGroupMaker = std::function<std::shared_ptr<DeviceGroup>(Transport& host, const std::vector<int>& ranks, uint64_t group)>;

}  // namespace cairn::comm
