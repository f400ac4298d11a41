#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop.h"
#include "comm/net/tls.h"
#include "comm/net/transport.h"

namespace cairn::comm {

// Where the machines of a run find each other: an address of the first machine.
struct RendezvousEndpoint {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "10.0.0.1:29400", "[fd00::1]:29400"; refuses everything else.
RendezvousEndpoint parse_rendezvous_endpoint(std::string_view text);

// One machine of a run and its ranks.
struct NodeSpec {
  int node = 0;                 // this machine's number
  int nodes = 1;                // number of machines; ranks are numbered machine by machine
  int count = 1;                // ranks on this machine
  std::vector<int> ranks = {};  // their world ranks, if a launcher has numbered them; then node and nodes are not used
  int size = 0;                 // world size, with `ranks`

  bool numbered() const { return !ranks.empty(); }
  int first() const { return numbered() ? *std::min_element(ranks.begin(), ranks.end()) : node; }
  bool is_host() const { return first() == 0; }
};

struct RendezvousOptions {
  RendezvousEndpoint endpoint;
  std::string address = {};                       // where other machines reach this one; empty: as the first machine sees it
  std::vector<std::string> more_interfaces = {};  // addresses of this machine's other interfaces, over which they reach it too
  std::string config_fingerprint = {};            // readable text that must be equal on all machines; others are refused
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);
  std::function<void(const std::string&)> tell = {};  // reports who came and who is missing
  const base::Stop* stop = nullptr;                   // aborts the wait when requested
};

// Makes the set-ups of this machine's ranks: listens, exchanges addresses with the other machines over TLS, numbers the ranks. A collective
// call of all machines. Throws and names the machines that did not come, or the difference in configuration.
std::vector<NetSetup> rendezvous_nodes(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options);

}  // namespace cairn::comm
