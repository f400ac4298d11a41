#pragma once
#include <chrono>
#include <cstdint>
#include <string_view>

#include "comm/link_facts.h"
#include "comm/transport.h"

namespace cairn::comm {

// The ways to do a collective. Which one is a pure function of what all ranks know, so that they agree without a word.
//
// All-reduce of S bytes among n ranks; p is the largest power of two up to n. What one rank sends, and in which order is summed:
//   direct   2(n-1)/n S, 2(n-1) messages       rank order
//   ring     2(n-1)/n S, 2(n-1) messages       part i: from rank i + 1 on, round to rank i
//   halving  2(p-1)/p S, 2 log2 p messages     neighbours first, then pairs, fours, ...: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7));
//            where n > p the first 2(n-p) ranks are paired before, and the pair is one: the odd one sends S, the even one S more
//   tree     (1 + children) S, the root one less; 2(n-1) messages in all     neighbours first, as halving, the last ones alone
// Up to 8 ranks it is always direct: each rank hears from each, and whoever waits knows for whom.
enum class AllReduce : uint8_t { direct, ring, halving, tree };
enum class AllGather : uint8_t { direct, ring, doubling };  // S = all parts: each rank sends (n-1)/n S in n-1 messages, or ceil(log2 n)
enum class Broadcast : uint8_t { flat, tree };              // (n-1) S at the root; or S to each child, at most ceil(log2 n)
enum class ReduceTo : uint8_t { flat, spread };             // S to the root; or its parts to their owners, and each sum to the root

inline constexpr int kDirectRanks = 8;

// How long it would take: latency, overhead, wire. The cheapest is chosen.
std::chrono::nanoseconds cost(AllReduce algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
std::chrono::nanoseconds cost(AllGather algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
std::chrono::nanoseconds cost(Broadcast algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
std::chrono::nanoseconds cost(ReduceTo algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);

AllReduce choose_all_reduce(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
AllGather choose_all_gather(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
Broadcast choose_broadcast(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);
ReduceTo choose_reduce(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts);

std::string_view name(AllReduce algorithm);

}  // namespace cairn::comm
