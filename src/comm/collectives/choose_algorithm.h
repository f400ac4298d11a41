#pragma once
#include <chrono>
#include <cstdint>
#include <string_view>

#include "comm/link_facts.h"
#include "comm/transport.h"

namespace cairn::comm {

// The algorithms of each collective. The choice is a pure function of what all ranks know, so that all choose the same one.
//
// All-reduce of S bytes among n ranks; p is the largest power of two up to n. What one rank sends, and the order of summation:
//   direct   2(n-1)/n S, 2(n-1) messages       rank order
//   ring     2(n-1)/n S, 2(n-1) messages       part i: rank i + 1, i + 2, ..., round to rank i
//   halving  2(p-1)/p S, 2 log2 p messages     neighbours first, then pairs, fours, ...: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7));
//            n > p: the first 2(n-p) ranks work in pairs; the odd one sends S, the even one S more
//   tree     (1 + children) S, the root S less; 2(n-1) messages in all     neighbours first, as halving
// Up to 8 ranks the direct algorithm is always used: every rank hears from every other one, so that a late rank is known by name.
enum class AllReduce : uint8_t { direct, ring, halving, tree };
enum class AllGather : uint8_t { direct, ring, doubling };  // each rank sends (n-1)/n S in n-1 messages; doubling: ceil(log2 n)
enum class Broadcast : uint8_t { flat, tree };              // (n-1) S at the root; tree: S to each child, at most ceil(log2 n)
enum class ReduceTo : uint8_t { flat, spread };             // S to the root; spread: parts to their owners, each sum to the root

inline constexpr int kDirectRanks = 8;

// The estimated time; the cheapest algorithm is chosen. choose_algorithm.cpp has the cost model.
std::chrono::nanoseconds cost(AllReduce algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
std::chrono::nanoseconds cost(AllGather algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
std::chrono::nanoseconds cost(Broadcast algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
std::chrono::nanoseconds cost(ReduceTo algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);

AllReduce choose_all_reduce(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
AllGather choose_all_gather(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
Broadcast choose_broadcast(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
ReduceTo choose_reduce(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);

// The number of blocks of an all_scan of this many bytes among this many ranks: sqrt((ranks - 2) bytes / (bandwidth overhead)), at most 64,
// and no block smaller than 16 KiB. (Latency does not count: the blocks behind travel meanwhile.)
int64_t choose_scan_blocks(int64_t bytes, int ranks, const LinkFacts& facts);
// The time until the last rank has its state: n - 1 hops of a latency and a block, then the other blocks.
std::chrono::nanoseconds scan_cost(int64_t bytes, int ranks, int64_t blocks, const LinkFacts& facts);

std::string_view name(AllReduce algorithm);

}  // namespace cairn::comm
