#pragma once
#include <cstdint>
#include <vector>

namespace cairn::sync {

// 0 .. count - 1 in an order that depends on seed and round alone: whoever asks gets the same, on any machine. Fisher-Yates from the last
// place down, the draw for place i being Random(seed).for_purpose("pairing").for_index(round).below(i, i + 1).
std::vector<int> shuffled(int count, uint64_t seed, int64_t round);

// The group of `island` in this round, in ascending order: neighbours in that order, `size` at a time; the last may be smaller.
std::vector<int> group_of(int island, int count, int size, uint64_t seed, int64_t round);

// How the spread of islands evolves in NoLoCo without gradients: the factor by which the mean square deviation shrinks with each round. At
// 1 and above it grows without end.
double contraction(double momentum, double pull, int group);

// The strongest pull that is stable with this momentum.
double strongest_pull(double momentum, int group);

}  // namespace cairn::sync
