#pragma once
#include <chrono>

namespace cairn::comm {

// Rough costs of the links among some ranks, the same on all of them. Collectives choose their algorithm by these.
struct LinkFacts {
  std::chrono::nanoseconds latency = std::chrono::microseconds(20);  // of an empty message
  std::chrono::nanoseconds overhead = std::chrono::microseconds(2);  // CPU time of a rank per message that it sends or receives
  double bytes_per_s = 10e9;                                         // of one rank, each direction
  double incast_penalty = 0.02;  // incast: fraction of the wire time added for each further peer that sends to a rank at once
  double ranks_per_core = 1;     // above 1 the overheads of ranks on one core add up
  bool shared_card = false;      // the links of a rank share bytes_per_s; else each pair has it to itself

  bool operator==(const LinkFacts&) const = default;
};

}  // namespace cairn::comm
