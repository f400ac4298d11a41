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

namespace cairn::comm {

// Where a rank is, and where it can be called.
struct RankAddress {
  int machine = 0;                 // ranks of one machine share memory
  uint16_t port = 0;               // on its own loopback, for the ranks of its machine
  std::string host = "127.0.0.1";  // of its machine, as the others reach it
  uint16_t outside_port = 0;       // there: TCP for messages, in TLS, and UDP for pulses; 0: there is one machine only
};

// What a rank process must be told to find its peers. Made by the agent before it starts the ranks.
struct NetSetup {
  int rank = 0;
  int size = 1;
  Key key{};                             // of this run; who does not know it is refused
  std::vector<RankAddress> addresses{};  // by rank
  // Open files, taken over; -1: none.
  int listener_fd = -1;   // on loopback
  int outside_fd = -1;    // for the ranks of other machines
  int heartbeat_fd = -1;  // UDP
  int segment_fd = -1;    // the memory that the ranks of this machine share, in the order of their numbers

  std::vector<int> fds() const { return {listener_fd, outside_fd, heartbeat_fd, segment_fd}; }
  void set_fds(const std::vector<int>& files);  // in that order
  std::vector<int> neighbours() const;          // the ranks on this one's machine, itself among them
};

struct NetOptions {
  std::chrono::nanoseconds connect_deadline = std::chrono::seconds(120);  // for all peers to be there
  std::chrono::nanoseconds handshake_deadline = std::chrono::seconds(5);  // for one stranger to show that it knows the key
  int64_t message_bytes_max = int64_t{1} << 36;                           // a longer frame is refused before anything is allocated
  int64_t early_bytes_max = int64_t{256} << 20;  // of messages that nobody asked for yet, per peer; then its sender has to wait
  // Links as slow as these, for trying out what a run would be like elsewhere: all ranks are then joined by sockets alone. The same on all.
  std::optional<LinkModel> links = {};
  uint64_t links_seed = 1;
};

// Ranks as processes joined by TCP over loopback and, with a segment, by shared memory; to other machines by TCP in TLS 1.3. Connects to
// all peers, or throws naming those that did not come.
std::unique_ptr<Transport> make_net_transport(NetSetup setup, NetOptions options = {});

// One set-up for each rank, with sockets already listening and a fresh key. All on one machine, or as if they were on these: `machines`
// says on which each rank is.
std::vector<NetSetup> make_net_setups(int size);
std::vector<NetSetup> make_net_setups(const std::vector<int>& machines);

}  // namespace cairn::comm
