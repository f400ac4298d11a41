// A rank's connection with the keeper of its node.
#pragma once
#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "elastic/packet.h"

namespace cairn::elastic {

class KeeperClient {
 public:
  // Calls at the door (CAIRN_KEEPER_FD). Does not wait: the keeper may have to be started. The door is borrowed.
  explicit KeeperClient(int door);

  // Whether the keeper can still answer. False once it is gone: what it had is lost. Cheap.
  bool alive();
  // Calls again, after the keeper was lost.
  void reconnect();
  // Asks, and waits for the answer; nothing where the keeper is gone or late. Throws bad_input with the keeper's words where it refuses.
  std::optional<Packet> ask(const base::Json& request, std::chrono::nanoseconds limit);
  // Says something that has no answer. False where the keeper is gone.
  bool tell(const base::Json& request);

 private:
  int door_;
  File socket_;
  uint64_t asked_ = 0;
};

}  // namespace cairn::elastic
