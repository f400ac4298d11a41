#pragma once
#include <chrono>
#include <cstddef>
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

// What carries messages between islands, seen from one of them. Messages from one island come in order; nobody need take part but sender
// and reader.
class IslandLink {
 public:
  struct Message {
    int from = -1;  // -1: none of the islands
    std::vector<std::byte> body;
  };

  virtual ~IslandLink() = default;
  virtual int me() const = 0;
  virtual int size() const = 0;             // islands there may be
  virtual bool lost(int island) const = 0;  // one that was lost stays so, even if it comes again...
  virtual void readmit(int /*island*/) {}   // ...until all have agreed that it was
  virtual std::chrono::nanoseconds now() const = 0;

  virtual void send(int to, std::vector<std::byte> body, comm::Purpose purpose) = 0;
  virtual std::optional<Message> next() = 0;  // what has come, without waiting
  // Until something may have come, or been lost, or this time.
  virtual void wait(std::chrono::nanoseconds until) = 0;
  virtual void warn(const std::string& what) = 0;
};

// Among ranks of one world, one of each island: position = island.
std::unique_ptr<IslandLink> in_world_link(comm::Group& islands);
// Among worlds: islands are the bridge's sites. Bytes are booked in this world's ledger, as sent to rank -1 - island.
std::unique_ptr<IslandLink> remote_link(comm::Bridge& bridge, comm::World& world);

}  // namespace cairn::sync
