#pragma once
#include <optional>
#include <string>
#include <vector>

#include "comm/net/transport.h"

namespace cairn::comm {

// The parts of make_net_setups, for those who start the ranks of one machine out of several.

// Set-ups of the ranks on this machine: sockets and shared memory. Each has one seat, its own, without a machine; `outside` is the address
// where other machines will call, none where there are none.
std::vector<NetSetup> make_machine_setups(const std::vector<int>& ranks, const std::optional<std::string>& outside);
// Tells them of everybody.
void set_addresses(std::vector<NetSetup>& setups, const std::vector<RankAddress>& addresses, const Key& key);

// A set-up as bytes, for the process that will be this rank. Files are given by number; whoever sends it sees to it that they are there.
std::string to_bytes(const NetSetup& setup);
NetSetup setup_from_bytes(std::string_view bytes);  // throws cairn::Error about what is no set-up

}  // namespace cairn::comm
