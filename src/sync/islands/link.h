#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/label.h"

namespace cairn::comm {
class Bridge;
class Group;
class World;
}  // namespace cairn::comm

namespace cairn::sync {

// The transport under IslandMessenger: ordered bytes between pairs of islands, point to point, with detection of lost islands.
class IslandLink {
 public:
  struct Message {
    int from = -1;             // -1: the sender is not an island
    uint64_t incarnation = 0;  // the sender's
    std::vector<std::byte> body = {};
  };

  virtual ~IslandLink() = default;
  virtual int me() const = 0;
  virtual int size() const = 0;             // islands that there may be
  virtual bool lost(int island) const = 0;  // it cannot be reached, not even through others
  virtual bool comes_back() const = 0;      // whether an island that is lost may come back
  // The number of an island's start, or of its last return to the run: higher each time; 0: the island was never here.
  virtual uint64_t incarnation(int island) const = 0;
  virtual void renew() = 0;  // takes the next incarnation: everything that is in flight from and to here is dropped
  virtual std::string refusal() const { return ""; }  // why another island refused this one; empty: none did
  virtual std::chrono::nanoseconds now() const = 0;

  virtual void send(int to, std::vector<std::byte> body, comm::Purpose purpose) = 0;
  // Bytes that this island has sent at its sockets so far, all headers included; 0: not known.
  virtual int64_t socket_bytes() const { return 0; }
  virtual std::optional<Message> next() = 0;  // the next message that has arrived; does not wait
  // Waits until a message may have arrived, an island may have been lost, or until this time.
  virtual void wait(std::chrono::nanoseconds until) = 0;
  virtual void warn(const std::string& what) = 0;
};

// Among ranks of one world, one rank of each island: the rank in the group is the island's number.
std::unique_ptr<IslandLink> in_world_link(comm::Group& islands);
// Between worlds: the sites of the bridge are the islands. The ledger of this world books the bytes as sent to rank -1 - island.
std::unique_ptr<IslandLink> remote_link(comm::Bridge& bridge, comm::World& world);

}  // namespace cairn::sync
