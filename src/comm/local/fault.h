#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::comm {

// A fault of the simulated network, as data: what, when, and for how long.
//
// When: before a rank's n-th collective, at a virtual time, or with the n-th message of a pair. Message faults (drop, delay, reorder,
// corrupt) hit that message or, with another trigger, the pair's first message from then on.
//
// Whom errors must blame: kill and freeze: that rank; corrupt: the sender of the message; drop and partition: the end that the other one
// did not hear. Nobody for slow, delay, reorder, a freeze that thaws or a partition that heals before the silence is noticed: such a run
// gives the same result, only later.
struct Fault {
  enum class Kind : uint8_t {
    kill,       // the rank dies; the network notifies its peers, unless a partition separates them
    freeze,     // the rank stops; arriving messages wait
    slow,       // the rank delays each of its collectives (`by`), or its links are `factor` times slower
    drop,       // a message never arrives
    delay,      // a message arrives later (`by`)
    reorder,    // a message arrives after the next one of its pair
    partition,  // nothing passes between two sets of ranks; held messages arrive once it heals
    corrupt,    // flips one bit of a message
  };

  Kind kind = Kind::kill;
  int rank = -1;                    // of kill, freeze, slow; also the rank of before_collective
  int64_t before_collective = -1;   // trigger: from 0 over all groups of the rank
  std::chrono::nanoseconds at{-1};  // trigger: virtual time
  int from = -1;                    // the pair of drop, delay, reorder, corrupt
  int to = -1;
  int64_t message = -1;              // trigger: the pair's message of this number, from 0, is sent
  std::chrono::nanoseconds lasts{};  // freeze, partition; zero: for good
  std::chrono::nanoseconds by{};     // delay, slow
  double factor = 1;                 // slow
  std::vector<int> these = {};       // partition: nothing from `these` reaches `those`,
  std::vector<int> those = {};
  bool one_way = false;  // nor, unless one_way, from `those` to `these`
  int64_t bit = 0;       // corrupt: which bit of the payload, modulo its length

  bool operator==(const Fault&) const = default;
};

bool strikes_a_message(Fault::Kind kind);  // as opposed to a rank or the network

// "drop message 3 of 0>2"; "freeze rank 1 for 0.5 s before its collective 2".
std::string describe(const Fault& fault);

// Refuses faults that are impossible with this many ranks.
void check(const Fault& fault, int ranks);

}  // namespace cairn::comm
