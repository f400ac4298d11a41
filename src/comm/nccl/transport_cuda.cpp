#include "comm/nccl/transport.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <stop_token>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "comm/device_transport.h"
#include "comm/nccl/queue.h"

namespace cairn::comm {
namespace {

constexpr uint64_t kHello = 0x6e63636c'68656c6f;  // distinguishes the messages with the NCCL id from those of the group

// Checks the queues regularly, so that a device on which this rank's thread waits is aborted at the deadline.
class Watcher {
 public:
  explicit Watcher(std::shared_ptr<NcclContext> context)
      : context_(std::move(context)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

 private:
  void run(const std::stop_token& stop) {
    cudaSetDevice(context_->device);
    std::unique_lock guard(context_->lock);
    while (!stop.stop_requested()) {
      wake_.wait_for(guard, stop, context_->options.watch_every, [] { return false; });
      for (NcclQueue* queue : context_->queues) queue->watch();
    }
  }

  std::shared_ptr<NcclContext> context_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: joined before the other members are destroyed
};

// The queues of one group: one for collectives, and one per peer and direction, because messages of a pair must not wait for a third rank,
// nor for messages in the other direction.
class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(std::shared_ptr<NcclContext> context, Transport& host, std::vector<int> ranks, uint64_t group)
      : context_(std::move(context)), host_(host), ranks_(std::move(ranks)), group_(group) {}

  int device() const override { return context_->device; }

  std::shared_ptr<DeviceJob> start(DeviceCall call) override {
    if (call.kind != OperationKind::send_recv) return queue(-1, false).add(std::move(call));
    const int peer = ranks_[call.arguments.root];
    return queue(peer, call.sends).add(std::move(call));
  }

  bool advance() override {
    bool under_way = false;
    for (const auto& [who, one] : queues_) {
      if (one->advance()) under_way = true;
    }
    return under_way;
  }

 private:
  NcclQueue& queue(int peer, bool sends) {
    auto& slot = queues_[{peer, sends}];
    if (slot) return *slot;
    Envelope hello;
    hello.group = (group_ ^ kHello) | 1;  // odd: not a collective
    hello.sequence = peer < 0 ? 0 : 1;
    hello.signature = {OperationKind::broadcast, Dtype::u8, Reduce::sum, 0, kNcclIdBytes};
    const int me = host_.rank();
    slot = std::make_unique<NcclQueue>(*context_, host_, peer < 0 ? ranks_ : sends ? std::vector{me, peer} : std::vector{peer, me}, hello);
    return *slot;
  }

  static constexpr int64_t kNcclIdBytes = 128;

  std::shared_ptr<NcclContext> context_;
  Transport& host_;
  std::vector<int> ranks_;
  uint64_t group_;
  std::map<std::pair<int, bool>, std::unique_ptr<NcclQueue>> queues_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int device, NcclOptions options) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) base::fail_input("transport nccl: no CUDA device ({})", cudaGetErrorString(status));
  if (device < 0 || device >= devices) base::fail_input("transport nccl: device {}: there are devices 0 to {}", device, devices - 1);
  auto context = std::make_shared<NcclContext>();
  context->device = device;
  context->options = options;
  const auto watcher = std::make_shared<Watcher>(context);
  return make_device_transport(std::move(host), [context, watcher](Transport& inside, const std::vector<int>& ranks, uint64_t group) {
    const bool free = ranks.size() == 1 && !context->options.one_rank;
    return free ? nullptr : std::make_shared<NcclGroup>(context, inside, ranks, group);
  });
}

}  // namespace cairn::comm
