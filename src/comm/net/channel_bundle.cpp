// Several connections to one peer: what is sent.
//
//   next piece  to the open channel c that minimises (unacknowledged bytes of c + piece) / share of c, if c's window has room; else it
//   waits.
//               So channels finish together, and one that slows down gets no more than what it answers.
//   window      rate * (least delay + 40 ms): enough to keep the path busy, little to move when it fails
//   rate        acknowledged bytes / time while bytes were unacknowledged; shares follow by RateSplit (path_planner.h)
//   stall       no answer for `stall` while another channel of the pair has answered in the second half of that time. If the others have
//               nothing to say they are probed. A rank that computes answers on none, and loses none.
//
// A message of 16 KB or more belongs to the sender again when all of it is acknowledged, since it may have to be sent again until then;
// shorter ones are copied.
#include "comm/net/channel_bundle.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"

namespace cairn::comm {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr int64_t kCopiedBytes = 16 << 10;
constexpr int64_t kPieceLeast = 16 << 10, kPieceFirst = 64 << 10, kPieceMost = 512 << 10;
constexpr double kPieceSeconds = 0.004;
constexpr int64_t kWindowLeast = 64 << 10, kWindowFirst = 1 << 20, kWindowMost = 32 << 20;
constexpr double kWindowSeconds = 0.04;
constexpr int64_t kEarlyPause = 8 << 20;         // the peer has no place for so much: nothing new is sent
constexpr int64_t kChannelPaceBytes = 32 << 10;  // a shaped link sends at least this much at once
constexpr auto kSampleTime = std::chrono::milliseconds(20);
constexpr auto kSampleTimeLeast = std::chrono::microseconds(200);
constexpr int64_t kSampleBytes = 64 << 10;
constexpr auto kPauseMost = std::chrono::milliseconds(500);  // of this rank between two checks; after that the watch begins anew

}  // namespace

ChannelBundle::ChannelBundle(int peer, std::vector<std::unique_ptr<ByteStream>> streams, Options options, FrameSink& sink)
    : peer_(peer), options_(std::move(options)), sink_(sink), split_(static_cast<int>(streams.size())) {
  for (auto& stream : streams) {
    channels_.emplace_back();
    channels_.back().stream = std::move(stream);
    channels_.back().buffer.resize(64 << 10);
  }
}

void ChannelBundle::enqueue(const Frame& frame, const void* data, std::shared_ptr<std::byte[]> owned, std::shared_ptr<Transfer> transfer,
                            const Ledger::Message& booking, Nanoseconds now) {
  auto one = std::make_shared<OutFrame>();
  one->header = encode(frame);
  one->data = static_cast<const std::byte*>(data);
  one->bytes = frame.payload_bytes();
  one->owned = std::move(owned);
  one->booking = booking;
  if (one->bytes > 0 && one->bytes < kCopiedBytes && !one->owned) {
    one->owned = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(one->bytes));
    std::memcpy(one->owned.get(), data, static_cast<size_t>(one->bytes));
    one->data = one->owned.get();
  }
  if (transfer) by_transfer_[transfer.get()] = one;
  one->transfer = std::move(transfer);
  pending_.push_back(std::move(one));
  assign(now);
}

void ChannelBundle::cancel(const Transfer& transfer) {
  const auto found = by_transfer_.find(&transfer);
  if (found == by_transfer_.end()) return;
  const std::shared_ptr<OutFrame> frame = found->second;
  by_transfer_.erase(found);
  frame->transfer = nullptr;
  if (frame->number == 0) {
    std::erase(pending_, frame);
  } else if (frame->bytes > 0 && !frame->owned) {
    frame->owned = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(frame->bytes));
    std::memcpy(frame->owned.get(), frame->data, static_cast<size_t>(frame->bytes));
    frame->data = frame->owned.get();
  }
}

int64_t ChannelBundle::piece_bytes(int channel) const {
  const double rate = split_.bytes_per_s(channel);
  return rate > 0 ? std::clamp(static_cast<int64_t>(rate * kPieceSeconds), kPieceLeast, kPieceMost) : kPieceFirst;
}

int64_t ChannelBundle::window(int channel) const {
  const double rate = split_.bytes_per_s(channel);
  if (rate <= 0) return kWindowFirst;
  const double delay = base::seconds(std::min<Nanoseconds>(at(channel).least_delay, std::chrono::seconds(1)));
  return std::clamp(static_cast<int64_t>(std::min(rate * (delay + kWindowSeconds), 1e12)), kWindowLeast, kWindowMost);
}

// -1: the best one has no room, and waiting for it is better than another.
int ChannelBundle::best_channel() const {
  int best = -1;
  double least = 0;
  for (int c = 0; c < size(); ++c) {
    if (!is_open(c)) continue;
    const double cost = static_cast<double>(at(c).in_flight + piece_bytes(c)) / std::max(split_.share(c), 1e-9);
    if (best >= 0 && cost >= least) continue;
    best = c;
    least = cost;
  }
  if (best >= 0 && at(best).in_flight > 0 && at(best).in_flight + piece_bytes(best) > window(best)) return -1;
  return best;
}

void ChannelBundle::assign(Nanoseconds now) {
  while (!again_.empty() || (!pending_.empty() && early_at_peer_ <= kEarlyPause)) {
    const int channel = best_channel();
    if (channel < 0) return;
    give(channel, next_piece(channel), now);
  }
}

std::shared_ptr<ChannelBundle::Piece> ChannelBundle::next_piece(int channel) {
  if (!again_.empty()) {
    std::shared_ptr<Piece> piece = std::move(again_.front());
    again_.pop_front();
    return piece;
  }
  const std::shared_ptr<OutFrame> frame = pending_.front();
  if (frame->number == 0) frame->number = ++last_number_;
  auto piece = std::make_shared<Piece>();
  const int64_t left = frame->bytes - frame->cut, most = piece_bytes(channel);
  piece->frame = frame;
  piece->offset = frame->cut;
  piece->bytes = left <= most + most / 4 ? left : most;
  frame->cut += piece->bytes;
  if (frame->cut == frame->bytes) pending_.pop_front();
  const auto record = encode(ChannelRecord{.number = frame->number, .offset = piece->offset, .bytes = piece->bytes});
  std::copy(record.begin(), record.end(), piece->header.begin());
  std::copy(frame->header.begin(), frame->header.end(), piece->header.begin() + kRecordHeaderBytes);
  piece->header_bytes = kRecordHeaderBytes + kFrameBytes;
  return piece;
}

void ChannelBundle::give(int channel, std::shared_ptr<Piece> piece, Nanoseconds now) {
  Channel& one = at(channel);
  piece->sent = 0;
  piece->given = now;
  piece->pace = options_.pace ? options_.pace(channel, piece->size(), now) : Pace{};
  if (one.in_flight == 0) {
    one.waiting_since = one.epoch = now;
    one.epoch_bytes = 0;
  }
  one.in_flight += piece->size();
  one.queue.push_back(piece);
  one.unacked.push_back(std::move(piece));
}

// Acknowledgements and losses go between pieces. False: the socket is full.
bool ChannelBundle::write_control(Channel& one, Nanoseconds now, int channel) {
  const auto next = [&]() -> std::optional<ChannelRecord> {
    if (!one.losses_to_tell.empty()) {
      const auto lost = static_cast<uint64_t>(one.losses_to_tell.front());
      one.losses_to_tell.pop_front();
      return ChannelRecord{.kind = ChannelRecord::Kind::lost, .number = lost};
    }
    if (!std::exchange(one.ack_due, false)) return std::nullopt;
    return ChannelRecord{.kind = ChannelRecord::Kind::ack, .number = one.arrived, .bytes = early_bytes_};
  };
  while (true) {
    if (one.control_left == 0) {
      if (!one.queue.empty() && (one.queue.front()->sent > 0 || one.stream->must_repeat())) return true;  // in the middle of a piece
      if (options_.pace && (one.ack_due || !one.losses_to_tell.empty())) {
        if (const Pace pace = options_.pace(channel, 0, now); pace.from > now) {  // the path is dead
          one.held_until = pace.from;
          return false;
        }
      }
      const auto record = next();
      if (!record) return true;
      one.control = encode(*record);
      one.control_left = kRecordHeaderBytes;
    }
    const int64_t sent = one.stream->write(std::span<const std::byte>(one.control).last(static_cast<size_t>(one.control_left)), {});
    if (sent < 0) return false;
    one.control_left -= sent;
  }
}

void ChannelBundle::write(int channel, Nanoseconds now) {
  Channel& one = at(channel);
  if (!one.open) return;
  one.held_until.reset();
  try {
    while (one.open && write_control(one, now, channel) && !one.queue.empty()) {
      Piece& piece = *one.queue.front();
      int64_t most = piece.size();
      if (piece.pace.bytes_per_ns > 0) {
        const int64_t due = std::min(most, piece.sent + kChannelPaceBytes);
        if (piece.pace.bytes_until(now) < due) {
          one.held_until = piece.pace.time_of(due);
          return;
        }
        most = std::min(most, piece.pace.bytes_until(now));
      }
      const int64_t header_left = std::max<int64_t>(piece.header_bytes - piece.sent, 0);
      const int64_t data_sent = std::max<int64_t>(piece.sent - piece.header_bytes, 0);
      const std::span header(piece.header.data() + (piece.header_bytes - header_left), static_cast<size_t>(header_left));
      const std::byte* data = piece.frame && piece.frame->data ? piece.frame->data + piece.offset + data_sent : nullptr;
      const std::span payload(data, static_cast<size_t>(std::max<int64_t>(most - piece.header_bytes, data_sent) - data_sent));
      const int64_t sent = one.stream->write(std::span<const std::byte>(header), payload);
      if (sent < 0) return;
      piece.sent += sent;
      if (piece.sent < piece.size()) continue;
      const std::shared_ptr<Piece> whole = one.queue.front();
      one.queue.pop_front();
      written(one, *whole);
    }
  } catch (const Error& error) {
    read(channel, now);  // its last records are still unread; one may carry the reason
    lose(channel, error.sentence(), false, now);
    throw_if_lost();
  }
}

void ChannelBundle::written(Channel& one, const Piece& piece) {
  one.state.bytes += piece.bytes;
  one.state.pieces += piece.frame ? 1 : 0;
  if (piece.frame && piece.frame->bytes < kCopiedBytes) tell(*piece.frame);
}

void ChannelBundle::tell(OutFrame& frame) {
  if (std::exchange(frame.told, true)) return;
  if (frame.transfer) by_transfer_.erase(frame.transfer.get());
  if (frame.transfer || frame.bytes > 0) sink_.written(frame.transfer, frame.booking);
  frame.transfer = nullptr;
}

void ChannelBundle::answered(int channel, const ChannelRecord& ack, Nanoseconds now) {
  Channel& one = at(channel);
  const uint64_t written = one.acked + one.unacked.size() - one.queue.size();
  if (ack.number < one.acked || ack.number > written)
    throw Error(Error::Kind::lost_peer, fmt::format("acknowledged {} pieces of {} that were sent", ack.number, written));
  early_at_peer_ = ack.bytes;
  while (one.acked < ack.number) {
    const std::shared_ptr<Piece> piece = one.unacked.front();
    one.unacked.pop_front();
    ++one.acked;
    one.in_flight -= piece->size();
    one.epoch_bytes += piece->size();
    one.least_delay = std::min(one.least_delay, now - piece->given);
    one.waiting_since = one.answered_at = now;
    if (!piece->frame) continue;
    piece->frame->answered += piece->bytes;
    if (piece->frame->answered == piece->frame->bytes) tell(*piece->frame);
  }
  sample(channel, now);
}

void ChannelBundle::sample(int channel, Nanoseconds now) {
  Channel& one = at(channel);
  const Nanoseconds took = now - one.epoch;
  if (one.epoch_bytes < kSampleBytes || took < (one.in_flight > 0 ? Nanoseconds(kSampleTime) : Nanoseconds(kSampleTimeLeast))) return;
  split_.measured(channel, static_cast<double>(one.epoch_bytes) / base::seconds(took));
  one.epoch = now;
  one.epoch_bytes = 0;
}

void ChannelBundle::check(Nanoseconds now) {
  const bool anew = now - std::exchange(checked_at_, now) > kPauseMost;
  for (Channel& one : channels_)
    if (anew) one.waiting_since = std::max(one.waiting_since, now);
  for (int c = 0; c < size(); ++c) {
    const Channel& one = at(c);
    const Nanoseconds silent = now - one.waiting_since;
    if (!one.open || one.in_flight == 0 || silent < options_.stall / 2) continue;
    bool others_answer = false;
    for (int other = 0; other < size(); ++other) {
      if (other == c || !is_open(other)) continue;
      others_answer = others_answer || at(other).answered_at > one.waiting_since + options_.stall / 2;
      if (!at(other).unacked.empty()) continue;
      auto probe = std::make_shared<Piece>();
      const auto record = encode(ChannelRecord{.kind = ChannelRecord::Kind::probe});
      std::copy(record.begin(), record.end(), probe->header.begin());
      probe->header_bytes = kRecordHeaderBytes;
      give(other, std::move(probe), now);
    }
    if (silent > options_.stall && others_answer)
      lose(c, fmt::format("no progress for {:.1f} s while another channel answered", base::seconds(silent)), false, now);
  }
  assign(now);
  throw_if_lost();
}

// What it has not acknowledged goes to the others, before anything new.
void ChannelBundle::lose(int channel, const std::string& why, bool by_peer, Nanoseconds now) {
  Channel& one = at(channel);
  if (!std::exchange(one.open, false)) return;
  if (!one.ended) one.state.lost_because = why;
  std::deque<std::shared_ptr<Piece>> again;
  for (auto& piece : one.unacked) {
    if (!piece->frame) continue;
    one.state.moved += piece->bytes;
    again.push_back(std::move(piece));
  }
  again_.insert(again_.begin(), again.begin(), again.end());
  one.unacked.clear();
  one.queue.clear();
  one.in_flight = one.control_left = 0;
  one.held_until.reset();
  one.into = nullptr;
  split_.lose(channel);
  const auto other = std::find_if(channels_.begin(), channels_.end(), [](const Channel& some) { return some.open; });
  if (other == channels_.end()) {
    lost_ = why;
    for (const auto& [_, held] : std::exchange(in_turn_, {})) sink_.on_payload(peer_, held->frame, held->target);  // why it left
    return;
  }
  if (!by_peer) other->losses_to_tell.push_back(channel);
  other->ack_due = true;  // the peer may wait for what this one would have said
  assign(now);
}

void ChannelBundle::throw_if_lost() {
  if (lost_) throw Error(Error::Kind::lost_peer, *lost_);
}

void ChannelBundle::end_writing() {
  const auto end = encode(ChannelRecord{.kind = ChannelRecord::Kind::end});
  for (Channel& one : channels_) {
    if (!one.open) continue;
    const bool between = one.queue.empty() && one.control_left == 0 && !one.stream->must_repeat();
    try {
      if (between) one.stream->write(std::span<const std::byte>(end), {});
    } catch (const Error&) {  // the peer is gone already
    }
    one.stream->end_writing();
  }
}

bool ChannelBundle::wants_write(int channel) const {
  const Channel& one = at(channel);
  return one.open && (!one.queue.empty() || one.control_left > 0 || one.ack_due || !one.losses_to_tell.empty());
}

bool ChannelBundle::wants_write() const {
  if (!pending_.empty() || !again_.empty()) return true;
  for (int c = 0; c < size(); ++c)
    if (wants_write(c)) return true;
  return false;
}

bool ChannelBundle::unanswered() const {
  return std::any_of(channels_.begin(), channels_.end(), [](const Channel& one) { return one.open && one.in_flight > 0; });
}

std::vector<ChannelState> ChannelBundle::states() const {
  std::vector<ChannelState> states;
  for (int c = 0; c < size(); ++c) {
    states.push_back(at(c).state);
    states.back().bytes_per_s = split_.bytes_per_s(c);
    states.back().share = split_.share(c);
    states.back().open = is_open(c);
  }
  return states;
}

}  // namespace cairn::comm
