#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/ledger.h"
#include "comm/link_model.h"
#include "comm/local/fault.h"
#include "comm/world.h"

namespace cairn::comm {

class Transport;

struct LocalOptions {
  uint64_t seed = 0;
  LinkModel link = {};
  std::vector<Fault> faults = {};
  // A rank of which nothing was heard for this long (it is frozen, or behind a partition) is lost to who does not hear it: what heartbeats
  // do on a real network. Zero: only deadlines notice.
  std::chrono::nanoseconds lost_after = std::chrono::seconds(3);
  bool keep_event_log = false;
  bool check_buffers = false;                        // that no rank writes over what it is still sending: costs a look at every byte
  std::function<WorldOptions(int rank)> world = {};  // none: the defaults
  // For tests: puts something around each rank's transport.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap = {};
};

// Thrown through a rank that a fault has killed or frozen to the end. Not a cairn::Error, so that nobody handles it by mistake.
struct Killed : std::exception {
  const char* what() const noexcept override { return "this rank was killed on purpose"; }
};

// N ranks as threads of this process, joined by a virtual network with virtual time. Ranks run freely, in parallel, until each of them
// waits; only then does the network deliver messages and time advance. So whatever the threads do, one seed gives one course of events.
class LocalNetwork {
 public:
  explicit LocalNetwork(int ranks, LocalOptions options = {});
  ~LocalNetwork();

  // Runs the body on every rank and returns when all have ended; how each ended, null where it returned. To be called once.
  std::vector<std::exception_ptr> run(const std::function<void(World&)>& body);

  // After run.
  Ledger ledger() const;                   // of all ranks
  std::string event_log() const;           // one line per event: the same bytes for the same seed
  std::vector<bool> faults_fired() const;  // which of the faults came to strike
  std::vector<int64_t> cancelled() const;  // by rank: messages given up before they were done. None where its work went well

 private:
  class Net;
  friend class LocalTransport;
  std::unique_ptr<Net> net_;
};

}  // namespace cairn::comm
