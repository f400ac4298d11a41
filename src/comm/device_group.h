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

// What devices shall do among themselves: one of the group's operations, on memory of the device.
struct DeviceCall {
  OperationKind kind = OperationKind::barrier;
  bool sends = false;  // of a send_recv: this rank is the sender
  Arguments arguments = {};
  void* after = nullptr;                // the stream that makes the inputs: the operation comes after what is on it now
  std::chrono::nanoseconds deadline{};  // after which the device is made to stop, even if nobody looks
  std::string name = "";                // as errors name it: "all_reduce of w, 12 f32"
};

// A call that was handed to the device. Used by the transport's thread.
class DeviceJob {
 public:
  enum class State : uint8_t { waiting, queued, done, failed };

  virtual ~DeviceJob() = default;
  virtual State state() const = 0;
  virtual Error error() const = 0;  // of a failed one
  // Of one that is queued: what is put on this stream from now on comes after it.
  virtual void order(void* stream) = 0;
  // Nobody wants it any more: what the device does for the whole group is stopped, unless this is done. Afterwards nothing touches its
  // memory.
  virtual void cancel() noexcept = 0;
};

// What a group's devices do without the host. Jobs of one group are done in the order of their start; those between a pair of ranks in
// their own order, apart from the collectives'. Memory must stay until a job is done or cancelled.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual int device() const = 0;  // the number of this rank's device
  virtual std::shared_ptr<DeviceJob> start(DeviceCall call) = 0;
  // Looks how far the jobs are and hands over those whose turn it is; never waits. Whether any is under way.
  virtual bool advance() = 0;
};

// Makes the device group of these ranks, of which this one is a member; null: their tensors travel through the host. All of them get the
// same answer. `group` is the number of the group, `host` carries what the members must tell each other beforehand.
using DeviceGroupMaker = std::function<std::shared_ptr<DeviceGroup>(Transport& host, const std::vector<int>& ranks, uint64_t group)>;

}  // namespace cairn::comm
