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
#include "comm/local/local.h"
#include "comm/transport.h"
#include "comm/world.h"

namespace cairn::harness {

// machines: net, as if the ranks were on two machines in turn, with TLS between them.
enum class On { local, net, machines, mpi };
std::string name(On on);

// What shall go wrong, as data, one call for each fault: `Faults().lose({.rank = 2, .before_collective = 1})`. comm::Fault says what each
// does and who is to blame for it; on net only lose and freeze before a collective are possible.
//
// When: `before_collective` counts from 0 the collectives that the rank starts, over all its groups; `at` is virtual time; `message` counts
// from 0 what is sent from one rank to another. Exactly one is given; a length of zero lasts to the end.
class Faults {
 public:
  struct Point {
    int rank = 0;
    int64_t before_collective = -1;
    std::chrono::nanoseconds at{-1};
  };
  struct Freeze {
    int rank = 0;
    int64_t before_collective = -1;
    std::chrono::nanoseconds at{-1};
    std::chrono::nanoseconds thaw_after{};
  };
  struct Slow {
    int rank = 0;
    int64_t before_collective = -1;
    std::chrono::nanoseconds at{-1};
    std::chrono::nanoseconds pause{};  // before each collective from then on
    double link_factor = 1;
  };
  struct Message {
    int from = 0;
    int to = 0;
    int64_t message = -1;
    std::chrono::nanoseconds at{-1};  // the first one from then on
  };
  struct Delay {
    int from = 0;
    int to = 0;
    int64_t message = -1;
    std::chrono::nanoseconds at{-1};
    std::chrono::nanoseconds by{};
  };
  struct Damage {
    int from = 0;
    int to = 0;
    int64_t message = -1;
    std::chrono::nanoseconds at{-1};
    int64_t bit = 0;
  };
  struct Partition {
    std::vector<int> these = {};
    std::vector<int> those = {};
    bool one_way = false;  // those do not hear these, but are heard
    std::chrono::nanoseconds at{};
    std::chrono::nanoseconds heal_after{};
  };

  Faults& lose(const Point& point);         // the rank dies there
  Faults& freeze(const Freeze& freeze);     // the rank stands still there
  Faults& slow(const Slow& slow);           // the rank or its links are slow from there on
  Faults& drop(const Message& message);     // never arrives
  Faults& delay(const Delay& delay);        // arrives late
  Faults& reorder(const Message& message);  // arrives after the next
  Faults& corrupt(const Damage& damage);    // arrives with a bit flipped
  Faults& partition(const Partition& partition);
  Faults& add(comm::Fault fault);
  const std::vector<comm::Fault>& all() const { return all_; }
  bool empty() const { return all_.empty(); }

 private:
  std::vector<comm::Fault> all_;
};

struct Options {
  On on = On::local;
  uint64_t seed = 0;
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);  // virtual on local
  std::chrono::nanoseconds warn_after = std::chrono::seconds(5);
  comm::LinkModel link = {};                                      // local only
  std::chrono::nanoseconds lost_after = std::chrono::seconds(3);  // local only: see comm::LocalOptions
  bool expect_errors = false;                                     // errors of ranks are kept for error_on; otherwise they are rethrown
  std::function<std::unique_ptr<comm::Transport>(std::unique_ptr<comm::Transport>)> wrap = {};  // local only
};

struct Run {
  comm::Ledger ledger;  // of all ranks
  int faults_fired = 0;
  std::vector<bool> fired;                      // which of the faults; local only
  std::vector<int64_t> cancelled;               // by rank: messages given up before they were done; local only
  std::string event_log;                        // local only
  std::map<int, Error> errors;                  // by rank
  std::map<int, std::vector<std::string>> log;  // each rank's log lines
  const Error& error_on(int rank) const;        // fails the test where there is none
};

// Runs the body on n ranks: threads of this process, each with a World of its own, joined by a virtual network or by real loopback sockets.
// On mpi this process is one of the n ranks that mpirun started, all of which call this; the Run then has this rank's errors and log, and
// (where the body went well) the ledger of all. With faults or expect_errors the ranks' errors are kept, without they are rethrown with the
// seed. A body may return something: ignored.
Run on_ranks(int n, const Options& options, const Faults& faults, const std::function<void(comm::World&)>& body);
Run on_ranks(int n, const Options& options, const std::function<void(comm::World&)>& body);
Run on_ranks(int n, const Faults& faults, const std::function<void(comm::World&)>& body);
Run on_ranks(int n, const std::function<void(comm::World&)>& body);

}  // namespace cairn::harness
