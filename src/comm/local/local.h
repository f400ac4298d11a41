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
  // A rank that is silent for this long (frozen, or behind a partition) is lost to those that do not hear it, as heartbeats do on a real
  // network. Zero: only deadlines notice.
  std::chrono::nanoseconds lost_after = std::chrono::seconds(3);
  bool keep_event_log = false;
  bool check_buffers = false;                        // checks that no rank overwrites a buffer that it is sending; compares every byte
  std::function<WorldOptions(int rank)> world = {};  // empty: the defaults
  // For tests: wraps each rank's transport.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap = {};
};

// Thrown through a rank that a fault has killed or frozen for good. Not a cairn::Error, so that nobody handles it by mistake.
struct Killed : std::exception {
  const char* what() const noexcept override { return "this rank was killed on purpose"; }
};

// N ranks as threads of this process on a simulated network with virtual time. Ranks run in parallel until all of them wait; only then the
// network delivers messages and time advances. So one seed gives one sequence of events, whatever the threads do.
class LocalNetwork {
 public:
  explicit LocalNetwork(int ranks, LocalOptions options = {});
  ~LocalNetwork();

  // Runs the body on every rank and waits for all. Returns the exception of each rank, null if it returned. Call it once.
  std::vector<std::exception_ptr> run(const std::function<void(World&)>& body);

  // After run.
  Ledger ledger() const;                   // of all ranks
  std::string event_log() const;           // one line per event; identical for the same seed
  std::vector<bool> faults_fired() const;  // which faults took effect
  std::vector<int64_t> cancelled() const;  // by rank: transfers cancelled before they were done; 0 in a clean run

 private:
  class Net;
  friend class LocalTransport;
  std::unique_ptr<Net> net_;
};

}  // namespace cairn::comm
