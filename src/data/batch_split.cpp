#include "data/batch_split.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::data {

BatchRange replica_range(int64_t samples, int replica, int replicas) {
  CAIRN_CHECK(samples >= 0 && replica >= 0 && replica < replicas, "replica {} of {}, {} samples", replica, replicas, samples);
  const int64_t first = samples * replica / replicas;
  return {first, samples * (replica + 1) / replicas - first};
}

BatchRange SampleShares::samples_of(int64_t samples, int rank) const {
  const BatchRange of_island = replica_range(samples, island, islands);
  const BatchRange of_rank = replica_range(of_island.count, rank, data_ranks);
  return {of_island.first + of_rank.first, of_rank.count};
}

std::vector<BatchRange> SampleShares::computed(int64_t samples) const {
  if (held.empty()) return {own(samples)};
  std::vector<BatchRange> ranges;
  for (const int rank : held) ranges.push_back(samples_of(samples, rank));
  return ranges;
}

BatchRange SampleShares::of_step_group(int64_t samples) const {
  const int64_t first = samples_of(samples, step_group_first).first;
  const BatchRange last = samples_of(samples, step_group_first + step_group_ranks - 1);
  return {first, last.first + last.count - first};
}

int64_t SampleShares::max_local_samples(int64_t samples) const {
  const int64_t shares = int64_t{data_ranks} * islands;
  return (samples + shares - 1) / shares;
}

BatchRange SampleShares::within_step_group(int64_t samples) const {
  return replica_range(samples, data_rank - step_group_first, step_group_ranks);
}

std::vector<BatchRange> micro_batches(int64_t samples, int64_t micro_batch) {
  CAIRN_CHECK(samples >= 0 && micro_batch >= 1, "{} samples in micro-batches of {}", samples, micro_batch);
  std::vector<BatchRange> parts;
  for (int64_t first = 0; first < samples; first += micro_batch) parts.push_back({first, std::min(micro_batch, samples - first)});
  return parts;
}

std::vector<BatchRange> even_micro_batches(int64_t samples, int64_t count) {
  CAIRN_CHECK(samples >= 0 && count >= 1, "{} samples in {} micro-batches", samples, count);
  std::vector<BatchRange> parts;
  for (int64_t i = 0, first = 0; i < count; ++i) {
    parts.push_back({first, samples / count + (i < samples % count ? 1 : 0)});
    first += parts.back().count;
  }
  return parts;
}

std::vector<BatchRange> micro_batches(int64_t samples, int64_t micro_batch, int64_t max_local_samples) {
  std::vector<BatchRange> parts = micro_batches(samples, micro_batch);
  parts.resize(std::max(parts.size(), micro_batches(max_local_samples, micro_batch).size()), {samples, 0});
  return parts;
}

}  // namespace cairn::data
