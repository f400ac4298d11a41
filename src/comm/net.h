#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace cairn::comm {

// What a rank process must be told to find its peers. Made by the agent before it starts the ranks.
struct NetSetup {
  int rank = 0;
  int size = 1;
  std::array<uint8_t, 32> key{};     // of this run; who does not know it is refused
  std::vector<uint16_t> ports = {};  // where each rank listens, on 127.0.0.1
  int listener_fd = -1;              // this rank's listening socket; taken over. -1 only where size is 1
  int segment_fd = -1;               // the memory that all ranks share, if they are on one machine; taken over
};

struct NetOptions {
  std::chrono::nanoseconds connect_deadline = std::chrono::seconds(120);  // for all peers to be there
  std::chrono::nanoseconds handshake_deadline = std::chrono::seconds(5);  // for one stranger to show that it knows the key
  int64_t message_bytes_max = int64_t{1} << 36;                           // a longer frame is refused before anything is allocated
  int64_t early_bytes_max = int64_t{256} << 20;  // of messages that nobody asked for yet, per peer; then its sender has to wait
};

// Ranks as processes joined by TCP over loopback and, with a segment, by shared memory. Connects to all peers, or throws naming those that
// did not come.
std::unique_ptr<Transport> make_net_transport(NetSetup setup, NetOptions options = {});

// A listening socket on 127.0.0.1 with a port that the system chose: (fd, port). The fd is closed on exec unless told otherwise.
std::pair<int, uint16_t> listen_on_loopback();

// One set-up for each rank, with sockets already listening and a fresh key.
std::vector<NetSetup> make_net_setups(int size);

}  // namespace cairn::comm
