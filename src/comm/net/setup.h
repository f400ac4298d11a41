#pragma once
#include <optional>
#include <string>
#include <vector>

#include "comm/net/transport.h"

namespace cairn::comm {

// The steps of make_net_setups, for a job on several machines.

// 1. The set-ups of this machine's ranks: listening sockets and shared memory. Each knows only its own address. `outside` is the address
//    at which other machines call; none: there is one machine.
//    `more` are the addresses of its other interfaces.
std::vector<NetSetup> make_machine_setups(const std::vector<int>& ranks, const std::optional<std::string>& outside,
                                          const std::vector<std::string>& more = {});
// 2. Completes them with the addresses of all ranks and the key of the run.
void set_addresses(std::vector<NetSetup>& setups, const std::vector<RankAddress>& addresses, const Key& key);

// A set-up as bytes, for the process of that rank. File descriptors travel as numbers; the sender sees to it that they are open there.
std::string to_bytes(const NetSetup& setup);
NetSetup setup_from_bytes(std::string_view bytes);  // throws cairn::Error where the bytes are no set-up

}  // namespace cairn::comm
