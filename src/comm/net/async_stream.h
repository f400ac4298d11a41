#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>

#include "comm/net/byte_stream.h"
#include "comm/net/tls.h"

namespace cairn::comm {

asio::ip::tcp protocol_of(int fd);  // whether a socket's addresses are of version 4 or 6

// A connection while two sides get to know each other: a socket and the wire on it, read and written by coroutines. Later its parts go to
// whoever uses them for good.
class AsyncStream {
 public:
  explicit AsyncStream(asio::io_context& io) : socket_(io) {}
  explicit AsyncStream(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  // Throws asio::system_error where there is nobody.
  asio::awaitable<void> connect(const std::string& host, uint16_t port);
  // From now on as they are, or in TLS. Throws where the other side is none that should be there.
  asio::awaitable<void> begin(const Tls* tls, Tls::Side side);
  // All of it, or an Error.
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

  // A text and its length; one that is longer than `most` is refused before anything is allocated.
  asio::awaitable<void> write_text(std::string text);
  asio::awaitable<std::string> read_text(uint32_t most);

  asio::ip::tcp::socket& socket() { return socket_; }
  bool is_open() const { return socket_.is_open(); }
  void close();
  // The socket's file and its wire; the stream is empty afterwards.
  std::pair<int, std::unique_ptr<ByteStream>> release();

 private:
  void check_open() const;
  asio::ip::tcp::socket socket_;
  std::unique_ptr<ByteStream> stream_;
};

}  // namespace cairn::comm
