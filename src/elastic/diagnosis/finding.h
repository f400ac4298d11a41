#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cairn::elastic {

// What is wrong with a rank or a path.
enum class Cause {
  dead,           // its process has ended
  frozen,         // its process stands still
  stuck,          // alive, but outside any operation for too long
  late_data,      // waits for its data loader
  stalled_path,   // nothing moves from `rank` to `peer`
  deadlock,       // ranks wait for each other
  slow_path,      // from `rank` to `peer`
  slow_sender,    // all paths from `rank`
  slow_receiver,  // all paths to `rank`
  slow_nic,       // both
  straggler,      // computes longer than ranks with the same work
};
std::string_view name(Cause cause);

// One result of the diagnosis.
struct Finding {
  Cause cause = Cause::stuck;
  int rank = -1;
  int peer = -1;  // of a path: where it leads
  std::string host = {};
  std::string operation = {};     // what others wait in: "all_reduce of loss (operation 5 of ranks 0 1)"; empty: nothing hangs
  std::string evidence = {};      // in words and figures
  std::vector<int> victims = {};  // ranks that wait because of it

  bool same_culprit(const Finding& other) const { return cause == other.cause && rank == other.rank && peer == other.peer; }
};

// "rank 5 on node7 is stuck: ...". One line.
std::string to_line(const Finding& finding);

}  // namespace cairn::elastic
