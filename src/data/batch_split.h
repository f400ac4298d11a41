// How a global batch is divided: over ranks, then into micro-batches. Integer arithmetic only, so every rank computes the same division.
#pragma once
#include <cstdint>
#include <vector>

namespace cairn::data {

// Positions first .. first + count - 1 of a batch.
struct BatchRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const BatchRange&) const = default;
};

// The part of `samples` for one of `replicas`: [replica * samples / replicas, (replica + 1) * samples / replicas). Parts follow each other
// without a gap and differ by at most one sample; with fewer samples than replicas some are empty.
BatchRange replica_range(int64_t samples, int replica, int replicas);

// Which samples of a global batch one rank and its step group (the ranks that take optimizer steps together) have. Islands that are
// separate worlds divide the batch first; the ranks of each world then divide the part of their island. Ranks along tp and cp work on the
// same samples, so they have the same share. The shares of a step group follow each other.
struct SampleShares {
  int data_rank = 0, data_ranks = 1;               // this rank's share of the samples of its world
  int step_group_first = 0, step_group_ranks = 1;  // the shares of its step group
  int island = 0, islands = 1;                     // of islands that are separate worlds
  double data_share = 1;                           // 1 / the ranks that have the same samples: they count them once together
  // The shares whose samples this rank computes, where a method gives it those of other ranks too (gradient coding); empty: its own.
  std::vector<int> held = {};

  // The samples of the rank with share `rank`, out of `samples` in a global batch.
  BatchRange samples_of(int64_t samples, int rank) const;
  BatchRange own(int64_t samples) const { return samples_of(samples, data_rank); }
  // What this rank computes: its own samples, or those of each share in `held`.
  std::vector<BatchRange> computed(int64_t samples) const;
  // The samples of the whole step group.
  BatchRange of_step_group(int64_t samples) const;
  // The most samples that any rank of any island has.
  int64_t max_local_samples(int64_t samples) const;
  // This rank's part of samples that its step group divides among itself, without other islands: held-out samples.
  BatchRange within_step_group(int64_t samples) const;
};

// `samples` in micro-batches of `micro_batch`, the last perhaps smaller; none for 0 samples.
std::vector<BatchRange> micro_batches(int64_t samples, int64_t micro_batch);
// `count` micro-batches, as even as possible: the first samples % count have one sample more.
std::vector<BatchRange> even_micro_batches(int64_t samples, int64_t count);
// Micro-batches of `micro_batch`, padded with empty ones to the number that `max_local_samples` gives, so that every rank makes as many
// passes as the rank with most samples.
std::vector<BatchRange> micro_batches(int64_t samples, int64_t micro_batch, int64_t max_local_samples);

}  // namespace cairn::data
