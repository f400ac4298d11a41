#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace cairn::comm {

// What one rank gives another of its machine: bytes and open files. -1 among the files stands for none, and arrives as -1.
struct Bundle {
  std::string bytes = {};
  std::vector<int> files = {};
};

// The first of the ranks that a foreign launcher started together on one machine: learns who the others are, then gives each its bundle.
// They meet at a socket named after the user and the job, which the system forgets with its owner; other users are not let in. All
// waiting ends `deadline` after the start, with an error that names who did not come; the siblings that did come are told the same.
class SiblingHost {
 public:
  SiblingHost(const std::string& job, int local_size, int own_rank, std::chrono::nanoseconds deadline);
  ~SiblingHost();

  // World ranks by local rank. Waits until all siblings have called.
  std::vector<int> ranks();

  // bundles[i] goes to local rank i; [0] is this rank's own and not sent. Waits until all have theirs. The files stay the caller's, who may
  // close them afterwards.
  void hand_out(const std::vector<Bundle>& bundles);

 private:
  class State;
  std::unique_ptr<State> state_;  // none where there is no sibling
  int own_rank_;
};

// Any other of these ranks. The constructor calls the first, waiting for it if need be, and says which rank of the world this is.
class Sibling {
 public:
  Sibling(const std::string& job, int local_rank, int local_size, int rank, std::chrono::nanoseconds deadline);
  ~Sibling();

  // What the first hands out. The files are the caller's from then on, closed on exec. Once only.
  Bundle collect();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::comm
