#pragma once
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <vector>

#include "comm/net.h"

namespace cairn::comm {

// Connects this rank with all others: calls those below it, is called by those above it. One socket per rank (none for itself), each end known
// to have the run's key. Throws naming who did not come. The listening socket is closed afterwards.
std::vector<asio::ip::tcp::socket> meet(asio::io_context& io, const NetSetup& setup, const NetOptions& options);

}  // namespace cairn::comm
