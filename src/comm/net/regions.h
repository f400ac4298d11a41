#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/net/peer.h"

namespace cairn::comm {

// One-sided reads over sockets: regions that this rank exposes, and its pulls from the regions of others.
class NetRegions {
 public:
  using SendFrame = std::function<void(int to, const Frame& frame, std::shared_ptr<std::byte[]> payload)>;
  NetRegions(CompletionQueue& done, SendFrame send_frame) : done_(done), send_frame_(std::move(send_frame)) {}

  void expose(const std::shared_ptr<NetTransfer>& region);
  void pull(const std::shared_ptr<NetTransfer>& transfer, int64_t offset);
  void forget(const NetTransfer& transfer);

  void asked(int peer, const Frame& pull);  // a peer asks for bytes; answered now, or once the region is exposed
  PayloadTarget place(const Frame& reply);  // the memory for the reply to one of our pulls
  void on_payload(const Frame& reply, const PayloadTarget& target);

 private:
  void answer(int peer, const Frame& pull, const NetTransfer& region);

  using EnvelopeKey = std::tuple<uint64_t, uint64_t, uint32_t>;
  CompletionQueue& done_;
  SendFrame send_frame_;
  std::map<EnvelopeKey, std::shared_ptr<NetTransfer>> exposed_;
  std::vector<std::pair<int, Frame>> early_;  // pulls of regions that are not exposed yet
  std::map<uint64_t, std::shared_ptr<NetTransfer>> pulls_;
  uint64_t pulls_made_ = 0;
};

}  // namespace cairn::comm
