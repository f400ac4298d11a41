// Frames on one connection: what SiteChannels wants to be written, what arrives for it, and known addresses.
#include <optional>
#include <span>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>

#include "base/error.h"
#include "comm/bridge/impl.h"

namespace cairn::comm {

using bridge::Head;

namespace {

Head head_of(const SiteFrame& frame) {
  return {.kind = frame.kind,
          .relayed = static_cast<uint8_t>(frame.relayed ? 1 : 0),
          .origin = frame.origin,
          .target = frame.target,
          .origin_incarnation = frame.origin_incarnation,
          .target_incarnation = frame.target_incarnation,
          .number = frame.number,
          .received = frame.received,
          .bytes = frame.bytes()};
}

SiteFrame frame_of(const Head& head, SiteFrame::Body body) {
  return {.kind = head.kind,
          .relayed = head.relayed != 0,
          .origin = head.origin,
          .target = head.target,
          .origin_incarnation = head.origin_incarnation,
          .target_incarnation = head.target_incarnation,
          .number = head.number,
          .received = head.received,
          .body = std::move(body)};
}

void check_head(const Head& head, int64_t message_bytes_max) {
  const int64_t most = head.kind == SiteFrame::Kind::message ? message_bytes_max : bridge::kTextBytesMax;
  if (head.magic != bridge::kMagic || head.kind < SiteFrame::Kind::message || head.kind > SiteFrame::Kind::bye || head.bytes < 0 ||
      head.bytes > most)
    throw Error(Error::Kind::lost_peer, "sent a bad header");
}

}  // namespace

// Lets the other connections have a turn: one on which there is always something to read or write would keep the thread to itself, and
// the others would count as silent.
asio::awaitable<void> Bridge::Impl::give_way() { co_await asio::post(io_, asio::use_awaitable); }

asio::awaitable<void> Bridge::Impl::read_all(Peer& peer, std::shared_ptr<AsyncStream> stream) {
  int origin = peer.site;  // of the frame that is arriving
  stream->on_arrival([this, &peer, &origin, own = stream.get()] {
    if (peer.stream.get() == own) channels_.heard(peer.site, origin, clock_.now());
  });
  try {
    while (true) {
      const auto head = co_await stream->read_value<Head>();
      check_head(head, options_.message_bytes_max);
      origin = head.origin;
      const auto body = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(head.bytes));
      co_await stream->read(*body);
      origin = peer.site;
      if (peer.stream != stream) co_return;
      if (head.kind == SiteFrame::Kind::addresses) {
        learn(base::parse_json({reinterpret_cast<const char*>(body->data()), body->size()}));
        continue;
      }
      channels_.arrived(peer.site, frame_of(head, body), clock_.now());
      publish();
      wake_writers();
      if (channels_.said_bye(peer.site)) hang_up(peer);
      co_await give_way();
    }
  } catch (const std::exception&) {  // it may call again
    if (peer.stream == stream) hang_up(peer);
  }
}

asio::awaitable<void> Bridge::Impl::write_all(Peer& peer, std::shared_ptr<AsyncStream> stream) {
  try {
    while (peer.stream == stream) {
      const Nanoseconds now = clock_.now();
      std::optional<SiteFrame> frame;
      if (std::exchange(peer.addresses_due, false)) {
        const std::string text = base::compact(addresses());
        const auto bytes = std::as_bytes(std::span(text));
        frame = SiteFrame{.kind = SiteFrame::Kind::addresses,
                          .origin = options_.site,
                          .target = peer.site,
                          .body = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end())};
      } else {
        frame = channels_.next_frame(peer.site, now);
      }
      if (frame) {
        co_await stream->write_value(head_of(*frame));
        if (frame->body) co_await stream->write(*frame->body);
        if (peer.stream == stream) count_bytes(peer);
        co_await give_way();
      } else {
        peer.wake->expires_after(channels_.ask_again(peer.site, now) - now);
        asio::error_code ignored;
        co_await peer.wake->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
    }
  } catch (const std::exception&) {
    if (peer.stream == stream) hang_up(peer);
  }
}

}  // namespace cairn::comm
