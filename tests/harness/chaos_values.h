#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/collectives/choose_algorithm.h"
#include "comm/dtype.h"

namespace cairn::harness {

// Which numbers: those of one member in one operation of one story.
struct ValueKey {
  uint64_t seed = 0;
  int64_t operation = 0;
  int64_t member = 0;
};

// Elements as bytes. Floats and doubles spread over many powers of two, so that their sum depends on the order; the others are integers so
// small that sums over 16 ranks are exact in every dtype.
std::vector<std::byte> chaos_values(const ValueKey& key, comm::Dtype dtype, int64_t count);

// The members' values reduced by a plain loop, from the first member to the last.
std::vector<std::byte> reduced_values(comm::Dtype dtype, comm::Reduce reduce, const std::vector<std::vector<std::byte>>& members);

// The same in the order in which an all-reduce sums them: comm/collectives/choose_algorithm.h says which.
std::vector<std::byte> all_reduced_values(comm::AllReduce algorithm, comm::Dtype dtype, comm::Reduce reduce,
                                          std::vector<std::vector<std::byte>> members);

}  // namespace cairn::harness
