#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::comm {

// Something that goes wrong on the virtual network, as data: what, when, and for how long.
//
// When is one of three: before a rank's collective of some number, at a virtual time, or with a pair's message of some number. Faults that
// strike a message (drop, delay, reorder, corrupt) strike that one or, given another when, the pair's first message from then on.
//
// Who is to blame, which is what errors must say: for kill and freeze that rank; for corrupt the sender of the message; for drop and
// partition one of the two ends, namely the one that the other did not hear. Nobody for slow, delay, reorder, a freeze that thaws or a
// partition that heals before the silence is noticed: then all is as if nothing had happened, only later.
struct Fault {
  enum class Kind : uint8_t {
    kill,       // the rank dies; its peers are told by the network, unless a partition lies between
    freeze,     // the rank stands still; what arrives waits for it
    slow,       // the rank is late for each of its collectives (`by`), or its links take `factor` times as long
    drop,       // a message never arrives
    delay,      // a message arrives later (`by`)
    reorder,    // a message arrives after the pair's next one
    partition,  // nothing passes between two sets of ranks, or one way; what was sent meanwhile arrives once it heals
    corrupt,    // one bit of a message is flipped on its way
  };

  Kind kind = Kind::kill;
  int rank = -1;                    // who is struck by kill, freeze, slow; and whose collective is meant by:
  int64_t before_collective = -1;   // when: counted from 0 over all groups of the rank
  std::chrono::nanoseconds at{-1};  // or when: virtual time
  int from = -1;                    // the pair of drop, delay, reorder, corrupt
  int to = -1;
  int64_t message = -1;              // or when: as this pair's message of this number, from 0, is sent
  std::chrono::nanoseconds lasts{};  // freeze, partition; zero: to the end
  std::chrono::nanoseconds by{};     // delay, slow
  double factor = 1;                 // slow
  std::vector<int> these = {};       // partition: nothing from these reaches those,
  std::vector<int> those = {};
  bool one_way = false;  // nor the other way round, unless one_way
  int64_t bit = 0;       // corrupt: which bit of the payload, modulo its length

  bool operator==(const Fault&) const = default;
};

bool strikes_a_message(Fault::Kind kind);  // rather than a rank or the whole network

// "drop message 3 of 0>2"; "freeze rank 1 for 0.5 s before its collective 2".
std::string describe(const Fault& fault);

// Refuses what makes no sense in a world of this many ranks.
void check(const Fault& fault, int ranks);

}  // namespace cairn::comm
