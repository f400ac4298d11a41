#pragma once
#include <cstdint>
#include <vector>

#include "comm/codec.h"
#include "comm/collectives/collectives.h"
#include "comm/coroutine.h"

namespace cairn::comm {

// Compressed all-reduce: replaces x by the sum over all ranks, with codec bytes on the network. All ranks get bitwise identical results,
// which do not depend on who owns what. Rank r sends 2(n-1)/n encoded_bytes(count) bytes. coded_all_reduce.cpp has the algorithm.
//
// The references must outlive the coroutine; x must not be touched before it is done.
Coroutine coded_all_reduce(Exchange& exchange, const Codec& codec, float* x, int64_t count);

// The same with one codec for the parts and another one for the sums.
Coroutine coded_all_reduce(Exchange& exchange, const Codec& parts, const Codec& sums, float* x, int64_t count);

// How many of `count` elements each rank owns: whole blocks as evenly as possible, the first ranks one more; the last block may be short.
std::vector<int64_t> block_counts(int64_t count, int ranks, int64_t block);

}  // namespace cairn::comm
