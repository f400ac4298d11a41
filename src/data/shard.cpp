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

std::vector<Share> even_micro_batches(int64_t samples, int64_t count) {
  CAIRN_CHECK(samples >= 0 && count >= 1, "{} samples in {} micro-batches", samples, count);
  std::vector<Share> parts;
  for (int64_t i = 0, first = 0; i < count; ++i) {
    parts.push_back({first, samples / count + (i < samples % count ? 1 : 0)});
    first += parts.back().count;
  }
  return parts;
}

std::vector<Share> micro_batches(int64_t samples, int64_t micro_batch, int64_t samples_most) {
  std::vector<Share> parts = micro_batches(samples, micro_batch);
  parts.resize(std::max(parts.size(), micro_batches(samples_most, micro_batch).size()), {samples, 0});
  return parts;
}

}  // namespace cairn::data
