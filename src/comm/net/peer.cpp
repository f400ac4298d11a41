#include "comm/net/peer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace cairn::comm {
namespace {

constexpr int64_t kBufferBytes = 64 << 10;
constexpr int64_t kDirectBytes = 16 << 10;  // from here on a payload is read straight into its target
constexpr int64_t kPaceBytes = 32 << 10;    // a shaped link sends at least this much at once
constexpr int64_t kReadAtOnce = 8 << 20;    // then other peers get their turn

}  // namespace

NetPeer::NetPeer(int rank, std::unique_ptr<ByteStream> stream, int64_t message_bytes_max)
    : rank_(rank),
      stream_(std::move(stream)),
      message_bytes_max_(message_bytes_max),
      buffer_(static_cast<size_t>(stream_ ? kBufferBytes : 0)) {}

void NetPeer::read(FrameSink& sink) {
  parked_ = false;
  int64_t budget = kReadAtOnce;
  while (true) {
    if (!frame_ && buffer_end_ - buffer_begin_ >= kFrameBytes) {
      if (!begin_frame(sink)) return;
    }
    if (frame_) {
      const int64_t here = std::min(buffer_end_ - buffer_begin_, frame_->payload_bytes() - payload_received_);
      if (std::byte* to = destination(); to && here > 0)
        std::memcpy(to + payload_received_, buffer_.data() + buffer_begin_, static_cast<size_t>(here));
      buffer_begin_ += here;
      payload_received_ += here;
      if (payload_received_ == frame_->payload_bytes()) {
        const Frame frame = *std::exchange(frame_, std::nullopt);
        sink.on_payload(rank_, frame, std::exchange(target_, {}));
        continue;
      }
    }
    // Only here, where the buffer holds no complete frame: the socket does not signal what is already in the buffer.
    if (budget <= 0) return;
    const int64_t before = payload_received_;
    if (!receive_some()) return;
    ++arrivals_;
    budget -= std::max<int64_t>(payload_received_ - before, buffer_end_);
  }
}

bool NetPeer::begin_frame(FrameSink& sink) {
  const Frame frame = decode(std::span<const std::byte, kFrameBytes>(buffer_.data() + buffer_begin_, kFrameBytes), message_bytes_max_);
  std::optional<PayloadTarget> target = sink.place(rank_, frame);
  if (!target) {
    parked_ = true;
    return false;
  }
  buffer_begin_ += kFrameBytes;
  frame_ = frame;
  target_ = std::move(*target);
  payload_received_ = 0;
  return true;
}

std::byte* NetPeer::destination() {
  if (target_.owned) return target_.owned.get();
  return target_.transfer ? static_cast<std::byte*>(target_.transfer->data) : nullptr;  // null: dropped
}

bool NetPeer::receive_some() {
  const int64_t missing = frame_ ? frame_->payload_bytes() - payload_received_ : 0;
  if (missing >= kDirectBytes) {  // the buffer is empty
    std::byte* to = destination();
    if (!to) scratch_.resize(static_cast<size_t>(kBufferBytes));
    const int64_t got =
        to ? stream_->read(to + payload_received_, missing) : stream_->read(scratch_.data(), std::min(missing, kBufferBytes));
    if (got < 0) return false;
    payload_received_ += got;
    return true;
  }
  std::memmove(buffer_.data(), buffer_.data() + buffer_begin_, static_cast<size_t>(buffer_end_ - buffer_begin_));
  buffer_end_ -= std::exchange(buffer_begin_, 0);
  const int64_t got = stream_->read(buffer_.data() + buffer_end_, kBufferBytes - buffer_end_);
  if (got < 0) return false;
  buffer_end_ += got;
  return true;
}

void NetPeer::enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
                      const Ledger::Message& booking, Pace pace) {
  outgoing_.push_back(
      {encode(frame), static_cast<const std::byte*>(data), frame.payload_bytes(), 0, std::move(owned), std::move(transfer), booking, pace});
}

int64_t Pace::bytes_until(std::chrono::nanoseconds now) const {
  return now < from ? 0 : static_cast<int64_t>(static_cast<double>((now - from).count()) * bytes_per_ns);
}

std::chrono::nanoseconds Pace::time_of(int64_t bytes) const {
  return from + std::chrono::nanoseconds(static_cast<int64_t>(std::ceil(static_cast<double>(bytes) / bytes_per_ns)));
}

void NetPeer::write(FrameSink& sink, std::chrono::nanoseconds now) {
  held_until_.reset();
  while (wants_write()) {
    Outgoing& one = outgoing_.front();
    int64_t most = kFrameBytes + one.bytes;
    if (one.pace.bytes_per_ns > 0) {
      const int64_t due = std::min(most, one.sent + kPaceBytes);  // in pieces worth a system call
      if (one.pace.bytes_until(now) < due) {
        held_until_ = one.pace.time_of(due);
        return;
      }
      most = std::min(most, one.pace.bytes_until(now));
    }
    const int64_t header_left = std::max<int64_t>(kFrameBytes - one.sent, 0);
    const int64_t data_sent = std::max<int64_t>(one.sent - kFrameBytes, 0);
    const auto whole_header = std::span<const std::byte>(one.header);
    const std::span payload(one.data + data_sent, static_cast<size_t>(std::max<int64_t>(most - kFrameBytes, data_sent) - data_sent));
    const int64_t sent = stream_->write(whole_header.last(static_cast<size_t>(header_left)), payload);
    if (sent < 0) return;
    one.sent += sent;
    if (one.sent < kFrameBytes + one.bytes) continue;
    const Outgoing whole = std::move(outgoing_.front());
    outgoing_.pop_front();
    if (whole.transfer || whole.bytes > 0) sink.written(whole.transfer, whole.booking);
  }
}

void NetPeer::cancel(const Transfer& transfer) {
  const auto found = std::find_if(outgoing_.begin(), outgoing_.end(), [&](const Outgoing& one) { return one.transfer.get() == &transfer; });
  if (found == outgoing_.end()) return;
  if (found->sent > 0 || (found == outgoing_.begin() && stream_->must_repeat())) {
    mute_ = true;  // the rest cannot be sent: its memory may be gone
    outgoing_.clear();
    stream_->end_writing();
  } else {
    outgoing_.erase(found);
  }
}

}  // namespace cairn::comm
