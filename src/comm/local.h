#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/ledger.h"
#include "comm/world.h"

namespace cairn::comm {

// What every link of the virtual network is like.
struct LinkModel {
  std::chrono::nanoseconds latency = std::chrono::microseconds(20);
  double bytes_per_s = 10e9;
  double jitter = 0.5;  // up to this share of the latency is added, as the seed decides
};

struct LocalOptions {
  uint64_t seed = 0;
  LinkModel link;
  bool keep_event_log = false;
  std::function<WorldOptions(int rank)> world;  // none: the defaults
};

// Thrown through a rank that a test has lost or that was frozen to the end. Not a cairn::Error, so that nobody handles it by mistake.
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

  // For faults, called on the rank's own thread (WorldOptions::before_collective): it stands still until all others have ended, then is
  // Killed.
  void freeze_here(int rank);

  Ledger ledger() const;          // of all ranks, after run
  std::string event_log() const;  // one line per event: the same bytes for the same seed

 private:
  class Net;
  friend class LocalTransport;
  std::unique_ptr<Net> net_;
};

}  // namespace cairn::comm
