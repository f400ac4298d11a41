#pragma once
#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>

#include "comm/net.h"

namespace cairn::comm {

// How two ranks of a run recognise each other: both send a random number and answer the other's with an HMAC-SHA256 under the run's key, bound
// to both rank numbers and to who called. Whoever does not know the key learns nothing and is refused after a few bytes of fixed size.

// The calling side. Throws where the other is not rank `to` of this run.
asio::awaitable<void> introduce(asio::ip::tcp::socket& socket, const NetSetup& setup, int to);

// The called side: the caller's rank. Throws where it is none of this run that should call.
asio::awaitable<int> recognise(asio::ip::tcp::socket& socket, const NetSetup& setup);

}  // namespace cairn::comm
