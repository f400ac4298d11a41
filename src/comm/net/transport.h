#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/link_model.h"
#include "comm/net/key.h"
#include "comm/transport.h"

namespace cairn::base {
class Stop;
}

namespace cairn::comm {

struct NetEndpoint {
  std::string host;
  uint16_t port = 0;  // TCP and UDP
};

// The machine of a rank, and where the rank listens.
struct RankAddress {
  int machine = 0;                                // ranks of one machine share memory
  uint16_t port = 0;                              // on loopback, for the ranks of its machine
  std::string host = "127.0.0.1";                 // as other machines reach its machine
  uint16_t outside_port = 0;                      // on `host`: TCP with TLS for messages, UDP for heartbeats; 0: there is one machine only
  std::vector<NetEndpoint> more_interfaces = {};  // where it listens on its machine's other interfaces, in their order
};

// What a rank process needs to find its peers. The agent makes it before it starts the ranks.
struct NetSetup {
  int rank = 0;
  int size = 1;
  Key key{};                             // of this run; a process that does not know it is refused
  std::vector<RankAddress> addresses{};  // by rank
  // Open file descriptors, which the transport takes over; -1: none.
  int listener_fd = -1;                 // TCP, on loopback
  int outside_fd = -1;                  // TCP, for the ranks of other machines
  int heartbeat_fd = -1;                // UDP
  int segment_fd = -1;                  // the memory that the ranks of this machine share, in rank order
  std::vector<int> interface_fds = {};  // on the machine's other interfaces: TCP, UDP of each

  std::vector<int> fds() const;                 // in that order
  void set_fds(const std::vector<int>& files);  // likewise
  std::vector<int> neighbours() const;          // the ranks of this machine, this one included, in order
};

inline constexpr int kChannelsMost = 16;

struct NetOptions {
  std::chrono::nanoseconds connect_deadline = std::chrono::seconds(120);  // for all peers to connect
  std::chrono::nanoseconds handshake_deadline = std::chrono::seconds(5);  // for one caller to prove that it knows the key
  int64_t message_bytes_max = int64_t{1} << 36;                           // a longer frame is refused before anything is allocated
  int64_t early_bytes_max = int64_t{256} << 20;                           // of unexpected messages, per peer; then its sender has to wait
  // Slows messages down as this model says, to try out another network; shared memory is then not used. The same on all ranks.
  std::optional<LinkModel> links = {};
  uint64_t links_seed = 1;
  // Connections to each rank of another machine (with `links`: to each rank), spread over the interfaces of both. The same on all ranks.
  int channels = 1;
  std::chrono::nanoseconds channel_stall = std::chrono::seconds(3);  // without an answer, while another one answers: it is given up
  // Set: an interface for each channel by chance, as a hash of ports would choose, not by plan. To compare.
  std::optional<uint64_t> hash_seed = {};
  const base::Stop* stop = nullptr;  // ends the wait for peers with an error of kind cancelled
};

// A transport among processes: shared memory and loopback TCP on one machine, TCP with TLS 1.3 between machines. Connects to all peers, or
// throws and names those that did not come.
std::unique_ptr<Transport> make_net_transport(NetSetup setup, NetOptions options = {});

// Tells the ranks of other machines that wait for the call of this rank that its process has ended. Its agent calls it; `limit` is for all
// of them together. Ranks that are connected already, and cannot be reached, have noticed.
void announce_death(const NetSetup& ended, std::chrono::nanoseconds limit);

// One set-up per rank, with listening sockets and a fresh key, for ranks that this machine starts. The second form pretends that rank i is
// on machine machines[i], which has these interfaces.
std::vector<NetSetup> make_net_setups(int size);
std::vector<NetSetup> make_net_setups(const std::vector<int>& machines, const std::vector<std::string>& interfaces = {"127.0.0.1"});

}  // namespace cairn::comm
