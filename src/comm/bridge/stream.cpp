// What travels on one connection: messages in order, known addresses, heartbeats that also acknowledge, and a goodbye. bridge.cpp says why
// nothing is lost or delivered twice.
#include <algorithm>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>

#include "base/error.h"
#include "comm/bridge/impl.h"

namespace cairn::comm {

using bridge::Head;

namespace {

constexpr int kHeartbeatsPerSilence = 10;  // heartbeats in the time after which a silent connection is closed

}  // namespace

asio::awaitable<void> Bridge::Impl::read_all(Peer& peer, std::shared_ptr<AsyncStream> stream) {
  stream->on_arrival([this, &peer] { peer.heard = clock_.now(); });
  try {
    while (true) {
      const auto head = co_await stream->read_value<Head>();
      const int64_t most = head.kind == Head::Kind::message ? options_.message_bytes_max : bridge::kTextBytesMax;
      if (head.magic != bridge::kMagic || head.bytes < 0 || head.bytes > most) throw Error(Error::Kind::lost_peer, "sent a bad header");
      std::vector<std::byte> body(static_cast<size_t>(head.bytes));
      co_await stream->read(body);
      if (peer.stream != stream) co_return;
      acknowledge(peer, head.received);
      if (head.kind == Head::Kind::message) take(peer, head, std::move(body));
      if (head.kind == Head::Kind::addresses) learn(base::parse_json({reinterpret_cast<const char*>(body.data()), body.size()}));
      if (head.kind == Head::Kind::bye) {
        lose(peer, "has ended its work");
        co_return;
      }
    }
  } catch (const std::exception&) {  // it may call again
    if (peer.stream == stream) hang_up(peer);
  }
}

void Bridge::Impl::take(Peer& peer, const Head& head, std::vector<std::byte> body) {
  if (head.number != peer.received) return;  // it came on an earlier connection
  ++peer.received;
  peer.heartbeat_due = true;
  peer.wake->cancel();
  {
    const std::scoped_lock lock(mutex_);
    inbox_.push_back({peer.site, peer.incarnation, std::move(body)});
    ++changes_;
  }
  changed_.notify_all();
}

// The first message that this connection has not carried yet; null: none.
const Bridge::Impl::Outgoing* Bridge::Impl::unwritten(const Peer& peer) {
  for (const Outgoing& one : peer.outgoing)
    if (one.number >= peer.written) return &one;
  return nullptr;
}

asio::awaitable<void> Bridge::Impl::write_all(Peer& peer, std::shared_ptr<AsyncStream> stream) {
  try {
    Nanoseconds heartbeat_at = clock_.now();
    while (peer.stream == stream) {
      const Nanoseconds now = clock_.now();
      const Outgoing* message = unwritten(peer);
      if (message && message->at <= now) {
        const Outgoing one = *message;  // it may be acknowledged while it is written
        peer.written = one.number + 1;
        co_await write(peer, *stream, Head::Kind::message, one.number, *one.body);
      } else if (peer.addresses_due) {
        peer.addresses_due = false;
        const std::string text = base::compact(addresses());
        co_await write(peer, *stream, Head::Kind::addresses, 0, std::as_bytes(std::span(text)));
      } else if (peer.heartbeat_due || now >= heartbeat_at) {
        peer.heartbeat_due = false;
        heartbeat_at = now + options_.silence_max / kHeartbeatsPerSilence;
        co_await write(peer, *stream, Head::Kind::heartbeat, 0, {});
      } else if (leaving_ && peer.outgoing.empty() && !peer.bye_sent) {
        peer.bye_sent = true;
        co_await write(peer, *stream, Head::Kind::bye, 0, {});
      } else {
        peer.wake->expires_after((message ? std::min(heartbeat_at, message->at) : heartbeat_at) - now);
        asio::error_code ignored;
        co_await peer.wake->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
    }
  } catch (const std::exception&) {
    if (peer.stream == stream) hang_up(peer);
  }
}

asio::awaitable<void> Bridge::Impl::write(const Peer& peer, AsyncStream& stream, Head::Kind kind, uint64_t number,
                                          std::span<const std::byte> body) {
  const Head head{.kind = kind, .number = number, .received = peer.received, .bytes = static_cast<int64_t>(body.size())};
  co_await stream.write_value(head);
  co_await stream.write(body);
}

}  // namespace cairn::comm
