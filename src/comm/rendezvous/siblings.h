#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace cairn::comm {

// What one rank passes to another of its machine: bytes and open file descriptors. A descriptor of -1 stands for none and arrives as -1.
struct Bundle {
  std::string bytes = {};
  std::vector<int> files = {};
};

// Ranks that a foreign launcher (srun, mpirun) started on one machine, without Cairn's agent. Local rank 0 collects the world ranks of the
// others and then passes each its bundle (its NetSetup and sockets).
//
// They connect through an abstract Unix socket named after user and job; it vanishes with its owner, and other users are refused.
// Everything must end within `deadline` of the start; otherwise an error names the missing ranks, also on the ranks that did come.
class SiblingHost {
 public:
  SiblingHost(const std::string& job, int local_size, int own_rank, std::chrono::nanoseconds deadline);
  ~SiblingHost();

  // World ranks by local rank. Waits until all siblings have connected.
  std::vector<int> ranks();

  // bundles[i] goes to local rank i; bundles[0] is this rank's own and not sent. Waits until all have arrived. The caller keeps its file
  // descriptors and may close them afterwards.
  void hand_out(const std::vector<Bundle>& bundles);

 private:
  class State;
  std::unique_ptr<State> state_;  // null: there is no sibling
  int own_rank_;
};

// Any other local rank. The constructor connects to local rank 0, waiting for it if necessary, and reports this world rank.
class Sibling {
 public:
  Sibling(const std::string& job, int local_rank, int local_size, int rank, std::chrono::nanoseconds deadline);
  ~Sibling();

  // Receives the bundle. The caller owns its file descriptors (close-on-exec). Call it once.
  Bundle collect();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::comm
