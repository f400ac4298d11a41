#pragma once
#include <cstdint>
#include <vector>

namespace cairn::sync {

// A permutation of 0 .. count - 1 that depends on seed and round alone, so every island computes the same one. Fisher-Yates from the last
// index down; the draw for index i is Random(seed).for_purpose("pairing").for_index(round).below(i, i + 1).
std::vector<int> shuffled(int count, uint64_t seed, int64_t round);

// The group of `island` in this round, ascending: consecutive islands of the permutation, `size` at a time. The last group may be smaller.
std::vector<int> group_of(int island, int count, int size, uint64_t seed, int64_t round);

// The factor by which the mean squared deviation between islands changes in each NoLoCo round without gradients (the spectral radius of its
// recurrence). At 1 and above the islands drift apart without bound.
double contraction(double momentum, double pull, int group);

// The largest pull (gamma) that is stable with this momentum.
double strongest_pull(double momentum, int group);

}  // namespace cairn::sync
