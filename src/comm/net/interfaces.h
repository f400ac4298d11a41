#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cairn::comm {

// The addresses of this machine over which ranks of other machines are reached: those of a list ("10.0.0.1,10.1.0.1"), or with "auto" one
// of each interface that is up, loopback left out, in the order of the system. Refuses names, repeated addresses, and addresses that are
// not of this machine.
std::vector<std::string> interface_addresses(std::string_view text);

}  // namespace cairn::comm
