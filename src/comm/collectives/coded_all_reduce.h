#pragma once
#include <cstdint>
#include <vector>

#include "comm/codec.h"
#include "comm/collectives/collectives.h"
#include "comm/coroutine.h"

namespace cairn::comm {

// The sum over all ranks in place of x, with codes on the wire. Each rank owns one part of x: it gets that part from all as codes, decodes
// and sums in float in rank order (its own part too has been coded, so that it does not matter who owns what), and gives the coded sum to
// all; everyone, itself included, keeps what that decodes to. So every rank holds the same bits.
//
// Rank r sends the code of every other rank's part once, and that of its own part n - 1 times: with blocks spread evenly,
// 2(n-1)/n encoded_bytes(count). The references must outlive the task; x must not be touched before it is done.
Coroutine coded_all_reduce(Exchange& exchange, const Codec& codec, float* x, int64_t count);

// The same with a codec of its own for the sums (coarse codes there, exact ones back).
Coroutine coded_all_reduce(Exchange& exchange, const Codec& parts, const Codec& sums, float* x, int64_t count);

// How many of `count` elements each rank owns: whole blocks, as even as can be, the first ranks one more; the last block may be short.
std::vector<int64_t> block_counts(int64_t count, int ranks, int64_t block);

}  // namespace cairn::comm
