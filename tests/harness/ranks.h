#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/ledger.h"
#include "comm/local.h"
#include "comm/world.h"

namespace cairn::harness {

enum class On { local, net };

// What shall go wrong, as data. `before_collective` counts from 0 the collectives that the rank starts, over all its groups.
class Faults {
 public:
  struct Point {
    int rank = 0;
    int64_t before_collective = 0;
  };
  Faults& lose(Point point);    // the rank dies there
  Faults& freeze(Point point);  // the rank stands still there
  const std::vector<Point>& lost() const { return lost_; }
  const std::vector<Point>& frozen() const { return frozen_; }
  bool empty() const { return lost_.empty() && frozen_.empty(); }

 private:
  std::vector<Point> lost_;
  std::vector<Point> frozen_;
};

struct Options {
  On on = On::local;
  uint64_t seed = 0;
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);  // virtual on local
  std::chrono::nanoseconds warn_after = std::chrono::seconds(5);
  comm::LinkModel link = {};   // local only
  bool expect_errors = false;  // errors of ranks are kept for error_on; otherwise they are rethrown
};

struct Run {
  comm::Ledger ledger;  // of all ranks
  int faults_fired = 0;
  std::string event_log;                        // local only
  std::map<int, Error> errors;                  // by rank
  std::map<int, std::vector<std::string>> log;  // each rank's log lines
  const Error& error_on(int rank) const;        // fails the test where there is none
};

// Runs the body on n ranks: threads of this process, each with a World of its own, joined by a virtual network or by real loopback sockets.
// With faults or expect_errors the ranks' errors are kept, without they are rethrown with the seed. A body may return something: ignored.
Run on_ranks(int n, const Options& options, const Faults& faults, const std::function<void(comm::World&)>& body);
Run on_ranks(int n, const Options& options, const std::function<void(comm::World&)>& body);
Run on_ranks(int n, const Faults& faults, const std::function<void(comm::World&)>& body);
Run on_ranks(int n, const std::function<void(comm::World&)>& body);

}  // namespace cairn::harness
