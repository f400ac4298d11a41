// What one synchronisation takes on links whose delays vary, in virtual time: in pairs, and as a sum over a tree.
#pragma once
#include <cstdint>

#include "comm/link_model.h"

namespace cairn::study {

// Log-normal delays with a mean of 100 ms and sigma 1, and bandwidth to spare.
comm::LinkModel varying_links();

// The mean time of a round over islands and rounds, of the rule noloco itself: each waits for its partner alone, for what it moved by and
// for its word that it has ours. (Slow weights came before.)
double pair_time(int islands, int rounds, const comm::LinkModel& link, uint64_t seed);
// The same messages among bare ranks, without a rule and its mailbox: for more islands than these are quick with.
double bare_pair_time(int islands, int rounds, const comm::LinkModel& link, uint64_t seed);
// Likewise of a sum over all, up and down a binary tree.
double tree_time(int islands, int rounds, const comm::LinkModel& link, uint64_t seed);

}  // namespace cairn::study
