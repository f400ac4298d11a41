// A stream that is closed, handed on or not begun says so instead of reading or writing.
#include "comm/net/async_stream.h"

#include <utility>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/net/listen.h"

namespace cairn::comm {
namespace {

asio::awaitable<void> expect_unusable(AsyncStream& stream, int& refused) {
  for (const bool writes : {true, false}) {
    try {
      uint32_t word = 7;
      if (writes) {
        co_await stream.write_value(word);
      } else {
        co_await stream.read(std::as_writable_bytes(std::span(&word, 1)));
      }
    } catch (const Error& error) {
      refused += error.kind() == Error::Kind::lost_peer ? 1 : 0;
    }
  }
}

TEST(AsyncStream, OneThatIsNotBegunOrClosedOrHandedOnThrows) {
  asio::io_context io;
  const Listener listener = listen_at("127.0.0.1");
  const asio::ip::tcp::acceptor owner(io, protocol_of(listener.fd), listener.fd);
  int refused = 0;
  bool is_open = false;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        AsyncStream stream(io);
        co_await stream.connect("127.0.0.1", listener.port);
        EXPECT_FALSE(stream.is_open());
        co_await expect_unusable(stream, refused);
        co_await stream.begin(nullptr, Tls::Side::client);
        is_open = stream.is_open();
        AsyncStream next(std::move(stream));
        co_await expect_unusable(stream, refused);
        next.close();
        co_await expect_unusable(next, refused);
      },
      asio::detached);
  io.run();
  EXPECT_TRUE(is_open);
  EXPECT_EQ(refused, 6) << "three times to read and three times to write";
}

}  // namespace
}  // namespace cairn::comm
