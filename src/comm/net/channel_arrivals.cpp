// Several connections to one peer: what arrives. The pieces of a frame may come on any channel, in any order, and twice (a channel was
// given up before its last acknowledgement). Each frame is delivered once, when its last byte is there; bye and failing frames after all
// frames that were sent before them.
//
// A piece whose frame has no place yet (the budget of unexpected messages is used up) is kept here and read on, since a piece behind it may
// be the one that this rank waits for. The acknowledgements say how much that is; the sender then pauses.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "comm/net/channel_bundle.h"

namespace cairn::comm {
namespace {

constexpr int64_t kDirectPieceBytes = 16 << 10;  // from here on a payload is read straight into its place
constexpr int64_t kChannelReadAtOnce = 8 << 20;  // then other channels get their turn
constexpr int64_t kEarlyMost = 512 << 20;        // pieces without a place: what a sender that keeps its windows can never reach
constexpr size_t kArrivingMost = 65536;          // frames of which some pieces are here
constexpr uint64_t kNumbersAhead = 1 << 20;      // of the first frame that is not complete

}  // namespace

std::byte* ChannelBundle::Assembly::destination() const {
  if (complete) return nullptr;  // the memory belongs to others now
  if (target.owned) return target.owned.get();
  return target.transfer ? static_cast<std::byte*>(target.transfer->data) : nullptr;
}

void ChannelBundle::read(int channel, Nanoseconds now) {
  Channel& one = at(channel);
  int64_t budget = kChannelReadAtOnce;
  while (one.open) {
    if (one.in_piece) {
      const int64_t here = std::min(one.end - one.begin, one.record.bytes - one.received);
      std::byte* to = one.early ? one.early.get() : one.into ? one.into->destination() : nullptr;
      if (to && !one.early) to += one.record.offset;
      if (to && here > 0) std::memcpy(to + one.received, one.buffer.data() + one.begin, static_cast<size_t>(here));
      one.begin += here;
      one.received += here;
      if (one.received == one.record.bytes) {
        finish_piece(one);
        continue;
      }
    } else if (begin_record(channel, now)) {
      continue;
    }
    if (budget <= 0) break;
    const int64_t before = one.received;
    if (!receive_some(channel, now)) break;
    ++arrivals_;
    budget -= std::max<int64_t>(one.received - before, one.end);
  }
  assign(now);
  throw_if_lost();
}

bool ChannelBundle::receive_some(int channel, Nanoseconds now) try {
  Channel& one = at(channel);
  const int64_t missing = one.in_piece ? one.record.bytes - one.received : 0;
  if (missing >= kDirectPieceBytes) {  // the buffer is empty
    std::byte* to = one.early ? one.early.get() : one.into ? one.into->destination() : nullptr;
    if (to && !one.early) to += one.record.offset;
    if (!to) scratch_.resize(one.buffer.size());
    const int64_t got = to ? one.stream->read(to + one.received, missing)
                           : one.stream->read(scratch_.data(), std::min(missing, static_cast<int64_t>(scratch_.size())));
    if (got < 0) return false;
    one.received += got;
    return true;
  }
  std::memmove(one.buffer.data(), one.buffer.data() + one.begin, static_cast<size_t>(one.end - one.begin));
  one.end -= std::exchange(one.begin, 0);
  const int64_t got = one.stream->read(one.buffer.data() + one.end, static_cast<int64_t>(one.buffer.size()) - one.end);
  if (got < 0) return false;
  one.end += got;
  return true;
} catch (const Error& error) {
  lose(channel, error.sentence(), false, now);
  return false;
}

// False: more bytes are needed.
bool ChannelBundle::begin_record(int channel, Nanoseconds now) {
  Channel& one = at(channel);
  if (one.end - one.begin < kRecordHeaderBytes) return false;
  const ChannelRecord record = decode_record(
      std::span<const std::byte, kRecordHeaderBytes>(one.buffer.data() + one.begin, kRecordHeaderBytes), options_.message_bytes_max);
  switch (record.kind) {
    case ChannelRecord::Kind::piece:
      if (one.end - one.begin < kRecordHeaderBytes + kFrameBytes) return false;
      begin_piece(one, record);
      return true;
    case ChannelRecord::Kind::probe:
      ++one.arrived;
      one.ack_due = true;
      break;
    case ChannelRecord::Kind::ack:
      answered(channel, record, now);
      break;
    case ChannelRecord::Kind::lost:
      if (record.number >= channels_.size()) refuse_record(fmt::format("channel {} of {}", record.number, channels_.size()));
      lose(static_cast<int>(record.number), "the peer gave it up", true, now);
      break;
    case ChannelRecord::Kind::end:
      one.ended = true;
      break;
  }
  one.begin += kRecordHeaderBytes;
  return true;
}

void ChannelBundle::begin_piece(Channel& one, const ChannelRecord& record) {
  std::array<std::byte, kFrameBytes> header;
  std::memcpy(header.data(), one.buffer.data() + one.begin + kRecordHeaderBytes, header.size());
  const Frame frame = decode(std::span<const std::byte, kFrameBytes>(header), options_.message_bytes_max);
  const int64_t whole = frame.payload_bytes();
  if (record.bytes > whole || record.offset > whole - record.bytes || (record.bytes == 0 && whole > 0))
    refuse_record(fmt::format("a piece of {} bytes at {} of a frame of {}", record.bytes, record.offset, whole));
  if (record.number == 0 || record.number > done_to_ + kNumbersAhead)
    refuse_record(fmt::format("frame {} after frame {}", record.number, done_to_));
  one.begin += kRecordHeaderBytes + kFrameBytes;
  one.in_piece = true;
  one.record = record;
  one.received = 0;
  one.into = nullptr;
  one.early = nullptr;
  if (is_done(record.number)) return;
  std::shared_ptr<Assembly>& assembly = arriving_[record.number];
  if (!assembly) {
    if (arriving_.size() > kArrivingMost) refuse_record(fmt::format("pieces of {} frames at once", arriving_.size()));
    assembly = std::make_shared<Assembly>(Assembly{.frame = frame, .header = header});
    if (!place(*assembly)) ++unplaced_;
  } else if (assembly->header != header) {
    refuse_record(fmt::format("another header for frame {}", record.number));
  }
  if (assembly->ranges.contains(record.offset)) return;
  one.into = assembly;
  if (assembly->placed) return;
  if (early_bytes_ + record.bytes > kEarlyMost) refuse_record(fmt::format("{} bytes that nobody asked for", early_bytes_ + record.bytes));
  one.early = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(std::max<int64_t>(record.bytes, 1)));
}

bool ChannelBundle::place(Assembly& assembly) {
  std::optional<PayloadTarget> target = sink_.place(peer_, assembly.frame);
  if (!target) return false;
  assembly.target = std::move(*target);
  assembly.placed = true;
  return true;
}

void ChannelBundle::finish_piece(Channel& one) {
  one.in_piece = false;
  ++one.arrived;
  one.ack_due = true;
  const std::shared_ptr<Assembly> assembly = std::exchange(one.into, nullptr);
  const std::shared_ptr<std::byte[]> early = std::exchange(one.early, nullptr);
  if (!assembly || assembly->complete) return;
  const ChannelRecord& piece = one.record;
  const auto after = assembly->ranges.lower_bound(piece.offset);
  if (after != assembly->ranges.end() && after->first == piece.offset && after->second == piece.bytes) return;  // twice
  const bool overlaps = (after != assembly->ranges.end() && after->first < piece.offset + piece.bytes) ||
                        (after != assembly->ranges.begin() && std::prev(after)->first + std::prev(after)->second > piece.offset);
  if (overlaps) refuse_record(fmt::format("pieces of frame {} overlap", piece.number));
  assembly->ranges[piece.offset] = piece.bytes;
  assembly->received += piece.bytes;
  if (early && assembly->placed) {  // it got its place while this piece arrived
    if (std::byte* to = assembly->destination()) std::memcpy(to + piece.offset, early.get(), static_cast<size_t>(piece.bytes));
  } else if (early) {
    assembly->early.push_back({piece.offset, piece.bytes, early});
    early_bytes_ += piece.bytes;
  }
  if (assembly->placed && assembly->received == assembly->frame.payload_bytes()) deliver(piece.number, assembly);
}

void ChannelBundle::retry(Nanoseconds now) {
  if (unplaced_ == 0) return;
  std::vector<std::pair<uint64_t, std::shared_ptr<Assembly>>> complete;
  for (const auto& [number, assembly] : arriving_) {
    if (assembly->placed || !place(*assembly)) continue;
    --unplaced_;
    for (const Assembly::Early& piece : std::exchange(assembly->early, {})) {
      if (std::byte* to = assembly->destination()) std::memcpy(to + piece.offset, piece.memory.get(), static_cast<size_t>(piece.bytes));
      early_bytes_ -= piece.bytes;
    }
    if (assembly->received == assembly->frame.payload_bytes()) complete.emplace_back(number, assembly);
  }
  for (const auto& [number, assembly] : complete) deliver(number, assembly);
  const auto open = std::find_if(channels_.begin(), channels_.end(), [](const Channel& one) { return one.open; });
  if (open != channels_.end()) open->ack_due = true;
  assign(now);
}

void ChannelBundle::deliver(uint64_t number, const std::shared_ptr<Assembly>& assembly) {
  arriving_.erase(number);
  assembly->complete = true;
  const bool last = assembly->frame.kind == Frame::Kind::bye || assembly->frame.kind == Frame::Kind::failing;
  if (last) in_turn_[number] = assembly;
  mark_done(number);
  if (!last) sink_.on_payload(peer_, assembly->frame, std::move(assembly->target));
  while (!in_turn_.empty() && in_turn_.begin()->first <= done_to_) {
    const std::shared_ptr<Assembly> next = in_turn_.begin()->second;
    in_turn_.erase(in_turn_.begin());
    sink_.on_payload(peer_, next->frame, std::move(next->target));
  }
}

void ChannelBundle::mark_done(uint64_t number) {
  done_.insert(number);
  while (!done_.empty() && *done_.begin() == done_to_ + 1) {
    ++done_to_;
    done_.erase(done_.begin());
  }
}

}  // namespace cairn::comm
