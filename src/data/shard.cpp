#include "data/shard.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::data {

Share share_of(int64_t samples, int replica, int replicas) {
  CAIRN_CHECK(samples >= 0 && replica >= 0 && replica < replicas, "replica {} of {}, {} samples", replica, replicas, samples);
  const int64_t first = samples * replica / replicas;
  return {first, samples * (replica + 1) / replicas - first};
}

std::vector<Share> micro_batches(int64_t samples, int64_t micro_batch) {
  CAIRN_CHECK(samples >= 0 && micro_batch >= 1, "{} samples in micro-batches of {}", samples, micro_batch);
  std::vector<Share> parts;
  for (int64_t first = 0; first < samples; first += micro_batch) parts.push_back({first, std::min(micro_batch, samples - first)});
  return parts;
}

}  // namespace cairn::data
