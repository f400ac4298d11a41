// Independent units of work over processes. A process that dies loses nothing but the unit it worked on, which another one takes.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace cairn::base {
class Stop;
}

namespace cairn::study {

struct WorkQueue {
  int processes = 1;                                              // 1: this one
  int64_t first = 0;                                              // the first unit
  int64_t end = -1;                                               // after the last one; -1: until `deliver` has enough
  std::function<std::vector<double>(int64_t unit)> compute = {};  // pure; in any process
  // Called here, in the order of units. False: enough; units after this one are dropped.
  std::function<bool(int64_t unit, const std::vector<double>& result)> deliver = {};
  std::function<void(int64_t unit, const std::vector<double>& result)> arrived = {};  // called here as results arrive; may be empty
  std::map<int64_t, std::vector<double>> known = {};                                  // results of an earlier run
  int64_t restarts = 100;                                                             // processes that may be lost
  std::function<void(int pid)> on_start = {};                                         // called for each process
  const base::Stop* stop = nullptr;
};

// Results do not depend on `processes`. Worker processes are forked from this one, so `compute` must not need other threads of it; they
// compute on one thread each. Throws what a worker's `compute` threw. Returns false where `stop` ended it.
bool run_queue(WorkQueue queue);

}  // namespace cairn::study
