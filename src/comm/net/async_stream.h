#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>

#include "comm/net/byte_stream.h"
#include "comm/net/tls.h"

namespace cairn::comm {

asio::ip::tcp protocol_of(int fd);  // IPv4 or IPv6, of an open socket

// A connection during its handshake: a socket and the byte stream on it, read and written by coroutines. release() hands both to the code
// that uses them afterwards.
class AsyncStream {
 public:
  explicit AsyncStream(asio::io_context& io) : socket_(io) {}
  explicit AsyncStream(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  // Calls from this local address; otherwise the system chooses. Before connect. Throws asio::system_error if it is none.
  void bind_to(const std::string& address);
  // Throws asio::system_error if nobody answers.
  asio::awaitable<void> connect(const std::string& host, uint16_t port);
  // Starts the byte stream: plain, or TLS after its handshake. Throws if the other side does not authenticate.
  asio::awaitable<void> begin(const Tls* tls, Tls::Side side);
  // How far begin() has come on the server's side. A plain stream stays at `spoke`.
  enum class Stage { silent, spoke, hello_accepted, authenticated };
  Stage stage() const { return stage_; }
  // Called whenever bytes have arrived, also those of an incomplete message or TLS record: the other side is alive, however slow.
  void on_arrival(std::function<void()> callback) { on_arrival_ = std::move(callback); }
  // Reads or writes all of it, or throws Error.
  asio::awaitable<void> read(std::span<std::byte> into);
  asio::awaitable<void> write(std::span<const std::byte> data);

  template <typename T>
  asio::awaitable<T> read_value() {
    T value;
    co_await read(std::as_writable_bytes(std::span(&value, 1)));
    co_return value;
  }
  template <typename T>
  asio::awaitable<void> write_value(const T& value) {
    co_await write(std::as_bytes(std::span(&value, 1)));
  }

  // A length-prefixed text. One that is longer than `most` is refused before anything is allocated.
  asio::awaitable<void> write_text(std::string text);
  asio::awaitable<std::string> read_text(uint32_t most);

  asio::ip::tcp::socket& socket() { return socket_; }
  const asio::ip::tcp::socket& socket() const { return socket_; }
  bool is_open() const { return socket_.is_open() && stream_; }  // begun, not closed, not handed on
  void close();
  // The socket's file descriptor and its byte stream; this object is empty afterwards.
  std::pair<int, std::unique_ptr<ByteStream>> release();

 private:
  void check_open() const;
  void check_begun() const;
  asio::ip::tcp::socket socket_;
  std::unique_ptr<ByteStream> stream_;
  Stage stage_ = Stage::silent;
  std::function<void()> on_arrival_;
};

}  // namespace cairn::comm
