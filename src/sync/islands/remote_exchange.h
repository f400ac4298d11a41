#pragma once
#include <memory>

#include "sync/islands/exchange.h"

namespace cairn::sync {

// Islands that are worlds of their own, each laid out in its way: fragments are put together on the island's first rank, which talks with
// those of the others.
std::unique_ptr<IslandExchange> make_remote_exchange(ExchangeParts parts);

}  // namespace cairn::sync
