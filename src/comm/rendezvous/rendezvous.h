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

// Where the machines of a run find each other: on the first of them.
struct RendezvousEndpoint {
  std::string host;
  uint16_t port = 0;
};
RendezvousEndpoint parse_rendezvous_endpoint(
    std::string_view text);  // "host:port", "10.0.0.1:29400", "[fd00::1]:29400"; refuses what is none

// What one machine brings.
struct NodeSpec {
  int node = 0;                 // this machine, of `nodes`
  int nodes = 1;                // all machines; ranks are numbered from the first machine on
  int count = 1;                // of ranks here
  std::vector<int> ranks = {};  // where a launcher has numbered them already: these, of `size`; node and nodes do not matter then
  int size = 0;

  bool numbered() const { return !ranks.empty(); }
  int first() const { return numbered() ? *std::min_element(ranks.begin(), ranks.end()) : node; }
  bool is_host() const { return first() == 0; }
};

struct RendezvousOptions {
  RendezvousEndpoint endpoint;
  std::string address = {};             // where the other machines reach this one; empty: as the first machine sees it
  std::string config_fingerprint = {};  // what must be the same on all machines, as people would say it; machines that differ are refused
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);
  std::function<void(const std::string&)> tell = {};  // who came, for whom we wait
  const base::Stop* stop = nullptr;                   // gives up when asked to
};

// Makes the set-ups of this machine's ranks: listens, meets the other machines under TLS, and learns where everybody is. Throws naming the
// machines that did not come, or what they differ in.
std::vector<NetSetup> rendezvous_nodes(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options);

}  // namespace cairn::comm
