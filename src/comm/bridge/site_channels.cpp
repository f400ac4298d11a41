#include "comm/bridge/site_channels.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"

namespace cairn::comm {
namespace {

using Kind = SiteFrame::Kind;

constexpr int kHeartbeatsPerSilence = 10;  // heartbeats in the time after which a silent stream is closed

// The body of a direct heartbeat: for each site, the number of the sender's stream with it.
SiteFrame::Body encode_streams(const std::vector<uint64_t>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
}
void decode_streams(const SiteFrame& frame, std::vector<uint64_t>& into) {
  if (frame.bytes() == static_cast<int64_t>(into.size() * sizeof(uint64_t)))
    std::memcpy(into.data(), frame.body->data(), frame.body->size());
}

}  // namespace

SiteChannels::SiteChannels(Options options, Nanoseconds now)
    : options_(std::move(options)), channels_(static_cast<size_t>(options_.sites)) {
  CAIRN_CHECK(options_.site >= 0 && options_.site < options_.sites, "site {} of {}", options_.site, options_.sites);
  CAIRN_CHECK(options_.incarnation > 0, "an incarnation is above 0");
  for (Channel& channel : channels_) {
    channel.onward.resize(channels_.size());
    channel.away_since = now;
  }
}

// Streams.

bool SiteChannels::opened(int site, uint64_t incarnation, Nanoseconds now) {
  CAIRN_CHECK(is_other(site) && incarnation != 0, "a stream with site {} of {}", site, options_.sites);
  Channel& channel = at(site);
  if (incarnation < channel.incarnation || (incarnation == channel.incarnation && channel.ended)) return false;
  closed(site, now);
  if (incarnation > channel.incarnation) begin_pair(channel, incarnation);
  channel.stream = ++streams_;
  channel.stream_incarnation = incarnation;
  channel.stream_heard = channel.heard = now;
  streams_changed(now);
  return true;
}

void SiteChannels::closed(int site, Nanoseconds now) {
  Channel& channel = at(site);
  if (channel.stream == 0) return;
  channel.stream = 0;
  channel.away_since = now;
  channel.relayed.clear();
  std::fill(channel.onward.begin(), channel.onward.end(), 0);
  // What this site sent through here begins again on its next stream, so the memory of the relay stays bounded.
  for (Channel& other : channels_) std::erase_if(other.relayed, [site](const SiteFrame& frame) { return frame.origin == site; });
  streams_changed(now);
}

// All neighbours learn it at once.
void SiteChannels::streams_changed(Nanoseconds now) {
  for (Channel& channel : channels_)
    if (channel.stream != 0) channel.heartbeat_at = now;
}

void SiteChannels::heard(int site, int origin, Nanoseconds now) {
  Channel& channel = at(site);
  if (channel.stream == 0) return;
  channel.stream_heard = channel.heard = now;
  if (is_other(origin) && reachable(origin, now)) at(origin).heard = now;
}

std::vector<int> SiteChannels::silent(Nanoseconds now) const {
  std::vector<int> sites;
  for (int site = 0; site < options_.sites; ++site)
    if (at(site).stream != 0 && now - at(site).stream_heard > options_.silence_max) sites.push_back(site);
  return sites;
}

bool SiteChannels::reachable(int site, Nanoseconds now) const {
  const Channel& channel = at(site);
  return channel.incarnation != 0 && !channel.ended && now - channel.heard <= options_.lost_after;
}

// Incarnations.

void SiteChannels::begin_pair(Channel& channel, uint64_t incarnation) {
  if (incarnation != channel.incarnation) channel.ended = false;
  channel.incarnation = incarnation;
  channel.outgoing.clear();
  channel.sent = channel.received = 0;
  channel.confirmed = channel.ack_due = channel.bye_sent = false;
  channel.path = {};  // so that writing begins on it, whichever it is
  channel.written = 0;
  channel.unacknowledged = 0;
}

void SiteChannels::renew(uint64_t incarnation, Nanoseconds now) {
  CAIRN_CHECK(incarnation > options_.incarnation, "incarnation {} does not follow {}", incarnation, options_.incarnation);
  options_.incarnation = incarnation;
  for (int site = 0; site < options_.sites; ++site) {
    closed(site, now);
    begin_pair(at(site), at(site).incarnation);
  }
  messages_.clear();
}

// Paths.

SiteChannels::Path SiteChannels::path_to(int site, Nanoseconds now) const {
  const Channel& channel = at(site);
  if (channel.stream != 0) return {site, channel.stream, 0};
  if (now - channel.away_since < options_.relay_after) return {};
  for (int via = 0; via < options_.sites; ++via) {
    const Channel& relay = at(via);
    if (relay.stream != 0 && relay.onward[static_cast<size_t>(site)] != 0)
      return {via, relay.stream, relay.onward[static_cast<size_t>(site)]};
  }
  return {};
}

// What was written on another path may be lost.
void SiteChannels::follow_path(int site, Nanoseconds now) {
  Channel& channel = at(site);
  const Path path = path_to(site, now);
  if (path == channel.path) return;
  channel.path = path;
  if (!options_.faults.resume_behind_path) channel.written = channel.outgoing.empty() ? channel.sent : channel.outgoing.front().number;
  channel.unacknowledged = 0;
  if (path.via >= 0) channel.bye_sent = false;
  channel.heartbeat_at = now;
}

// Frames that arrive.

void SiteChannels::arrived(int site, SiteFrame frame, Nanoseconds now) {
  if (!is_other(site) || at(site).stream == 0) return;
  at(site).stream_heard = now;
  if (frame.target == options_.site) {
    receive(site, frame, now);
  } else {
    relay(site, std::move(frame));
  }
}

void SiteChannels::relay(int site, SiteFrame frame) {
  const bool may = !frame.relayed && frame.origin == site && frame.origin_incarnation == at(site).stream_incarnation;
  if (!may || !is_other(frame.target) || frame.target == site || at(frame.target).stream == 0 || options_.faults.drop_relayed) return;
  std::deque<SiteFrame>& queue = at(frame.target).relayed;
  // A later heartbeat says all that an earlier one says: on a slow stream they do not pile up.
  if (frame.kind == Kind::heartbeat)
    std::erase_if(queue, [site](const SiteFrame& one) { return one.origin == site && one.kind == Kind::heartbeat; });
  frame.relayed = true;
  queue.push_back(std::move(frame));
}

void SiteChannels::receive(int site, SiteFrame& frame, Nanoseconds now) {
  const bool direct = frame.origin == site;
  if (!is_other(frame.origin) || frame.relayed == direct || frame.origin_incarnation == 0) return;
  Channel& channel = at(frame.origin);
  // A stream belongs to one incarnation. While it is open, another start of that site is refused, also through a relay.
  if (channel.stream != 0 && frame.origin_incarnation != channel.stream_incarnation) return;
  const bool over = frame.origin_incarnation < channel.incarnation || (frame.origin_incarnation == channel.incarnation && channel.ended);
  if (over && !options_.faults.accept_any_incarnation) return;
  if (frame.origin_incarnation > channel.incarnation) begin_pair(channel, frame.origin_incarnation);
  channel.heard = now;
  if (direct && frame.kind == Kind::heartbeat) decode_streams(frame, channel.onward);
  if (frame.kind == Kind::bye) {
    channel.ended = true;
    channel.outgoing.clear();
    return;
  }
  if (frame.target_incarnation != options_.incarnation && !options_.faults.accept_any_incarnation) return;
  channel.confirmed = true;
  acknowledge(channel, frame.received);
  if (frame.kind == Kind::message) take(frame.origin, frame);
}

void SiteChannels::take(int from, SiteFrame& frame) {
  Channel& channel = at(from);
  channel.ack_due = true;  // also for one that came before: the sender does not know
  if (frame.number != channel.received) return;
  ++channel.received;
  messages_.push_back({from, channel.incarnation, std::move(frame.body)});
}

void SiteChannels::acknowledge(Channel& channel, uint64_t received) {
  while (!channel.outgoing.empty() && channel.outgoing.front().number < received) {
    const Outgoing& first = channel.outgoing.front();
    if (first.number < channel.written) channel.unacknowledged -= static_cast<int64_t>(first.body->size());
    channel.written = std::max(channel.written, first.number + 1);
    channel.outgoing.pop_front();
  }
}

// Frames that leave.

bool SiteChannels::send(int to, uint64_t incarnation, SiteFrame::Body body, Nanoseconds leaves, Nanoseconds now) {
  if (!is_other(to) || !reachable(to, now) || at(to).incarnation != incarnation) return false;
  if (!body) body = std::make_shared<std::vector<std::byte>>();
  at(to).outgoing.push_back({at(to).sent++, leaves, std::move(body)});
  return true;
}

SiteFrame SiteChannels::frame_to(int site, Kind kind) {
  Channel& channel = at(site);
  channel.ack_due = false;
  return {.kind = kind,
          .origin = options_.site,
          .target = site,
          .origin_incarnation = options_.incarnation,
          .target_incarnation = channel.incarnation,
          .received = channel.received};
}

// The first message that this path has not carried and that may be written on it; null: none.
const SiteChannels::Outgoing* SiteChannels::next_message(const Channel& channel) const {
  if (channel.outgoing.empty() || !channel.confirmed) return nullptr;
  const uint64_t place = channel.written - channel.outgoing.front().number;
  if (place >= channel.outgoing.size()) return nullptr;
  const Outgoing& one = channel.outgoing[place];
  const bool relayed = channel.path.onward != 0;
  if (relayed && channel.unacknowledged > 0 && channel.unacknowledged + static_cast<int64_t>(one.body->size()) > options_.relay_window)
    return nullptr;
  return &one;
}

std::optional<SiteFrame> SiteChannels::control_frame(int via, int target, Nanoseconds now) {
  Channel& channel = at(target);
  if (channel.path.via != via) return std::nullopt;
  const Outgoing* message = next_message(channel);
  const bool acknowledges = channel.ack_due && !(message && message->leaves <= now);  // a message acknowledges too
  if (now >= channel.heartbeat_at || acknowledges) {
    channel.heartbeat_at = now + options_.silence_max / kHeartbeatsPerSilence;
    SiteFrame frame = frame_to(target, Kind::heartbeat);
    if (via == target) {
      std::vector<uint64_t> numbers;
      for (const Channel& other : channels_) numbers.push_back(other.stream);
      frame.body = encode_streams(numbers);
    }
    return frame;
  }
  if (!leaving_ || channel.bye_sent || channel.incarnation == 0 || !channel.outgoing.empty()) return std::nullopt;
  channel.bye_sent = true;
  return frame_to(target, Kind::bye);
}

std::optional<SiteFrame> SiteChannels::message_frame(int via, int target, Nanoseconds now) {
  Channel& channel = at(target);
  if (channel.path.via != via) return std::nullopt;
  const Outgoing* message = next_message(channel);
  if (!message || message->leaves > now) return std::nullopt;
  SiteFrame frame = frame_to(target, Kind::message);
  frame.number = message->number;
  frame.body = message->body;
  channel.written = message->number + 1;
  channel.unacknowledged += frame.bytes();
  return frame;
}

std::optional<SiteFrame> SiteChannels::relayed_frame(int via) {
  std::deque<SiteFrame>& queue = at(via).relayed;
  if (queue.empty()) return std::nullopt;
  SiteFrame frame = std::move(queue.front());
  queue.pop_front();
  if (frame.kind == Kind::message) relayed_.push_back({frame.origin, frame.target, frame.bytes()});
  return frame;
}

std::optional<SiteFrame> SiteChannels::next_frame(int site, Nanoseconds now) {
  if (!is_other(site) || at(site).stream == 0) return std::nullopt;
  for (int target = 0; target < options_.sites; ++target) {
    if (target == options_.site) continue;
    follow_path(target, now);
    if (std::optional<SiteFrame> frame = control_frame(site, target, now)) return frame;
  }
  // Messages to each site on this stream, and what is relayed (under this site's own number), in turn.
  int& turn = at(site).turn;
  for (int step = 1; step <= options_.sites; ++step) {
    const int target = (turn + step) % options_.sites;
    std::optional<SiteFrame> frame = target == options_.site ? relayed_frame(site) : message_frame(site, target, now);
    if (!frame) continue;
    turn = target;
    return frame;
  }
  return std::nullopt;
}

SiteChannels::Nanoseconds SiteChannels::ask_again(int site, Nanoseconds now) const {
  Nanoseconds at_latest = now + options_.silence_max / kHeartbeatsPerSilence;
  for (int target = 0; target < options_.sites; ++target) {
    const Channel& channel = at(target);
    if (target == options_.site || channel.path.via != site) continue;
    at_latest = std::min(at_latest, channel.heartbeat_at);
    if (const Outgoing* message = next_message(channel)) at_latest = std::min(at_latest, message->leaves);
  }
  return std::max(at_latest, now);
}

void SiteChannels::leave() { leaving_ = true; }

bool SiteChannels::has_left(Nanoseconds now) const {
  for (int site = 0; site < options_.sites; ++site) {
    const Channel& channel = at(site);
    if (!is_other(site) || !reachable(site, now) || channel.bye_sent) continue;
    // A site without a path will notice the silence. A stream or a relay may be there again soon.
    const bool may_come = path_to(site, now).via >= 0 || now - channel.away_since < 2 * options_.relay_after;
    if (may_come || !channel.outgoing.empty()) return false;
  }
  return true;
}

std::vector<SiteChannels::Message> SiteChannels::take_messages() { return std::exchange(messages_, {}); }
std::vector<SiteChannels::Relayed> SiteChannels::take_relayed() { return std::exchange(relayed_, {}); }

}  // namespace cairn::comm
