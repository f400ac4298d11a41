#include "comm/net/async_stream.h"

#include <sys/socket.h>

#include <asio/connect.hpp>
#include <asio/use_awaitable.hpp>

#include "base/error.h"

namespace cairn::comm {

using asio::ip::tcp;

tcp protocol_of(int fd) {
  int family = AF_INET;
  socklen_t length = sizeof family;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return family == AF_INET6 ? tcp::v6() : tcp::v4();
}

// The owner may close the stream while a coroutine waits on it; its descriptor number may belong to another file by then.
void AsyncStream::check_open() const {
  if (!socket_.is_open()) throw Error(Error::Kind::lost_peer, "the connection was given up");
}

void AsyncStream::check_begun() const {
  if (!is_open()) throw Error(Error::Kind::lost_peer, "the connection was given up");
}

void AsyncStream::bind_to(const std::string& address) {
  const auto own = asio::ip::make_address(address);
  socket_.open(own.is_v6() ? tcp::v6() : tcp::v4());
  socket_.bind({own, 0});
}

asio::awaitable<void> AsyncStream::connect(const std::string& host, uint16_t port) {
  asio::error_code not_numbers;
  const auto address = asio::ip::make_address(host, not_numbers);
  if (!not_numbers) {
    co_await socket_.async_connect({address, port}, asio::use_awaitable);
    co_return;
  }
  tcp::resolver resolver(socket_.get_executor());
  const auto found = co_await resolver.async_resolve(host, std::to_string(port), asio::use_awaitable);
  co_await asio::async_connect(socket_, found, asio::use_awaitable);
}

asio::awaitable<void> AsyncStream::begin(const Tls* tls, Tls::Side side) {
  socket_.non_blocking(true);
  socket_.set_option(tcp::no_delay(true));
  if (side == Tls::Side::server) {
    co_await socket_.async_wait(tcp::socket::wait_read, asio::use_awaitable);  // a silent caller costs no TLS state
    stage_ = Stage::spoke;
  }
  check_open();
  if (!tls) {
    stream_ = make_plain_stream(socket_.native_handle());
    co_return;
  }
  auto stream = std::make_unique<TlsStream>(*tls, side, socket_.native_handle());
  while (true) {
    check_open();
    const TlsStream::Handshake next = stream->handshake();
    if (next == TlsStream::Handshake::done) break;
    if (stream->hello_accepted()) stage_ = Stage::hello_accepted;
    co_await socket_.async_wait(next == TlsStream::Handshake::wants_read ? tcp::socket::wait_read : tcp::socket::wait_write,
                                asio::use_awaitable);
  }
  stream_ = std::move(stream);
  stage_ = Stage::authenticated;
}

asio::awaitable<void> AsyncStream::read(std::span<std::byte> into) {
  while (!into.empty()) {
    check_begun();
    const int64_t got = stream_->read(into.data(), static_cast<int64_t>(into.size()));
    if (got > 0) {
      into = into.subspan(static_cast<size_t>(got));
    } else {
      co_await socket_.async_wait(tcp::socket::wait_read, asio::use_awaitable);
    }
    if (on_arrival_) on_arrival_();
  }
}

asio::awaitable<void> AsyncStream::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    check_begun();
    const int64_t sent = stream_->write(data, {});
    if (sent > 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else {
      co_await socket_.async_wait(tcp::socket::wait_write, asio::use_awaitable);
    }
  }
}

asio::awaitable<void> AsyncStream::write_text(std::string text) {
  co_await write_value(static_cast<uint32_t>(text.size()));
  co_await write(std::as_bytes(std::span(text)));
}

asio::awaitable<std::string> AsyncStream::read_text(uint32_t most) {
  const auto length = co_await read_value<uint32_t>();
  if (length > most) throw Error(Error::Kind::lost_peer, "sent a text that is too long for a handshake");
  std::string text(length, '\0');
  co_await read(std::as_writable_bytes(std::span(text)));
  co_return text;
}

void AsyncStream::close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

std::pair<int, std::unique_ptr<ByteStream>> AsyncStream::release() {
  const int fd = socket_.is_open() ? socket_.release() : -1;
  return {fd, std::move(stream_)};
}

}  // namespace cairn::comm
