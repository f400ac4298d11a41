#include "comm/net/regions.h"

#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace cairn::comm {
namespace {

constexpr size_t kEarlyMax = 4096;  // pulls that wait for their region

}  // namespace

void NetRegions::expose(const std::shared_ptr<NetTransfer>& region) {
  exposed_[region->envelope.key()] = region;
  for (const auto& [peer, pull] : std::exchange(early_, {})) asked(peer, pull);
}

void NetRegions::pull(const std::shared_ptr<NetTransfer>& transfer, int64_t offset) {
  transfer->number = ++pulls_made_;
  pulls_[transfer->number] = transfer;
  send_frame_(
      transfer->peer,
      {.kind = Frame::Kind::pull, .envelope = transfer->envelope, .bytes = transfer->bytes, .offset = offset, .number = transfer->number},
      nullptr);
}

void NetRegions::forget(const NetTransfer& transfer) {
  if (transfer.kind == NetTransfer::Kind::expose) exposed_.erase(transfer.envelope.key());
  if (transfer.kind == NetTransfer::Kind::pull) pulls_.erase(transfer.number);
}

void NetRegions::asked(int peer, const Frame& pull) {
  const auto found = exposed_.find(pull.envelope.key());
  if (found != exposed_.end()) return answer(peer, pull, *found->second);
  if (early_.size() >= kEarlyMax) throw Error(Error::Kind::lost_peer, "pulled from too many regions that are not exposed yet");
  early_.emplace_back(peer, pull);
}

void NetRegions::answer(int peer, const Frame& pull, const NetTransfer& region) {
  if (pull.offset > region.bytes - pull.bytes) {
    throw Error(Error::Kind::lost_peer, fmt::format("asked for {} bytes at {} of a region of {}", pull.bytes, pull.offset, region.bytes));
  }
  // A copy, so that the region may be withdrawn while the answer is on its way.
  auto copy = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(pull.bytes));
  std::memcpy(copy.get(), static_cast<const std::byte*>(region.data) + pull.offset, static_cast<size_t>(pull.bytes));
  send_frame_(
      peer, {.kind = Frame::Kind::reply, .purpose = region.purpose, .envelope = pull.envelope, .bytes = pull.bytes, .number = pull.number},
      std::move(copy));
}

PayloadTarget NetRegions::place(const Frame& reply) {
  const auto found = pulls_.find(reply.number);
  if (found == pulls_.end()) return {};
  if (reply.bytes != found->second->bytes) throw Error(Error::Kind::lost_peer, "answered a pull with another number of bytes");
  if (found->second->mode == PullMode::replace) return {found->second, nullptr};
  return {nullptr, std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(reply.bytes))};
}

void NetRegions::on_payload(const Frame& reply, const PayloadTarget& target) {
  const auto found = pulls_.find(reply.number);
  if (found == pulls_.end()) return;
  const auto transfer = found->second;
  pulls_.erase(found);
  if (target.owned) add_into(transfer->dtype, transfer->data, target.owned.get(), reply.bytes / size_of(transfer->dtype));
  done_.finish(transfer);
}

}  // namespace cairn::comm
