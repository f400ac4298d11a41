#pragma once
// One-sided reads over MPI messages: regions that this rank exposes, and its own pulls from the regions of others.
//
// A pull posts the receive of its bytes first, then sends a `pull` frame. The other side answers by sending a copy of the bytes on the same
// lane. A pull that comes before its region is exposed waits there.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/inbox.h"
#include "comm/mpi/endpoint.h"
#include "comm/net/frame.h"
#include "comm/transport.h"

namespace cairn::comm {

// What this rank asked the MPI transport for.
struct MpiTransfer final : Receive {
  enum class Kind { send, recv, expose, pull, timer };
  Kind kind = Kind::send;
  Purpose purpose = Purpose::control;
  PullMode mode = PullMode::replace;
  Dtype dtype = Dtype::u8;
  uint64_t number = 0;  // of a long message or a pull
};

class MpiRegions {
 public:
  MpiRegions(MpiEndpoint& endpoint, const base::Clock& clock) : endpoint_(endpoint), clock_(clock) {}

  void expose(const std::shared_ptr<MpiTransfer>& region) {
    exposed_[region->envelope.key()] = region;
    for (const auto& [peer, pull] : std::exchange(early_pulls_, {})) answer(peer, pull);
  }

  void forget(const MpiTransfer& region) {
    const auto found = exposed_.find(region.envelope.key());
    if (found != exposed_.end() && found->second.get() == &region) exposed_.erase(found);
  }

  // Posts the receive of a pull. Returns the frame that asks the peer for the bytes.
  Frame begin_pull(const std::shared_ptr<MpiTransfer>& transfer, int64_t offset) {
    const std::shared_ptr<void> own = transfer->mode == PullMode::add ? allocate_plain(transfer->bytes) : nullptr;
    void* to = own ? own.get() : transfer->data;
    endpoint_.start(std::make_shared<MpiPayload>(MpiPayload{.peer = transfer->peer,
                                                            .lane = lane(transfer->number),
                                                            .data = static_cast<std::byte*>(to),
                                                            .bytes = transfer->bytes,
                                                            .transfer = transfer,
                                                            .owned = own}));
    return {
        .kind = Frame::Kind::pull, .envelope = transfer->envelope, .bytes = transfer->bytes, .offset = offset, .number = transfer->number};
  }

  // A peer asks for bytes of a region. Throws cairn::Error where they are not in it.
  void answer(int peer, const Frame& pull) {
    const auto found = exposed_.find(pull.envelope.key());
    if (found == exposed_.end()) {
      early_pulls_.emplace_back(peer, pull);
      return;
    }
    const MpiTransfer& region = *found->second;
    if (pull.offset > region.bytes - pull.bytes) {
      throw Error(Error::Kind::lost_peer, fmt::format("asked for {} bytes at {} of a region of {}", pull.bytes, pull.offset, region.bytes));
    }
    // A copy, so that the region may be withdrawn while the answer is on its way.
    std::shared_ptr<void> copy = allocate_plain(pull.bytes);
    std::memcpy(copy.get(), static_cast<const std::byte*>(region.data) + pull.offset, static_cast<size_t>(pull.bytes));
    auto* data = static_cast<std::byte*>(copy.get());
    endpoint_.start(std::make_shared<MpiPayload>(
        MpiPayload{.outgoing = true,
                   .peer = peer,
                   .lane = lane(pull.number),
                   .data = data,
                   .bytes = pull.bytes,
                   .owned = std::move(copy),
                   .booking = Ledger::Message{endpoint_.rank(), peer, pull.bytes, region.purpose, clock_.now(), {}}}));
  }

 private:
  static uint64_t lane(uint64_t pull) { return 2 * pull + 1; }  // odd; long messages have the even lanes

  using EnvelopeKey = std::tuple<uint64_t, uint64_t, uint32_t>;
  MpiEndpoint& endpoint_;
  const base::Clock& clock_;
  std::map<EnvelopeKey, std::shared_ptr<MpiTransfer>> exposed_;
  std::vector<std::pair<int, Frame>> early_pulls_;
};

}  // namespace cairn::comm
