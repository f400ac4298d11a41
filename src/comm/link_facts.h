#pragma once
#include <chrono>

namespace cairn::comm {

// What the links among some ranks cost, roughly and the same as all of these ranks see it: collectives choose their algorithm by it.
struct LinkFacts {
  std::chrono::nanoseconds latency = std::chrono::microseconds(20);  // of a message of no length
  std::chrono::nanoseconds overhead = std::chrono::microseconds(2);  // of a rank's time for each message it sends or receives
  double bytes_per_s = 10e9;                                         // of one rank, each way
  double crowding = 0.02;     // share of the wire time that is added for each further peer a rank hears from at the same time
  double ranks_per_core = 1;  // above 1 the ranks' overheads add up, since they share cores

  bool operator==(const LinkFacts&) const = default;
};

}  // namespace cairn::comm
