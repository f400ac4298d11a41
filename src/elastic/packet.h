// Packets between ranks and their keeper: JSON with file descriptors, on a Unix socket that keeps packets apart.
#pragma once
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/rendezvous/unix_packet.h"

namespace cairn::elastic {

using comm::File;
using comm::Received;

struct Packet {
  base::Json body;
  std::vector<File> files = {};
};

// Sends one packet; waits for room until the deadline at most. Returns 0 or an errno. A long text travels as a file of its own.
int send_packet(int fd, const base::Json& body, std::span<const int> files, std::chrono::nanoseconds limit);

// Receives one packet if there is one. An invalid packet counts as the end of the connection.
Received receive_packet(int fd, Packet& packet);

}  // namespace cairn::elastic
