// Choices that need no vectors: at random, balanced over groups, by a score, within clusters by a score.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/random.h"

namespace cairn::data {

// All of these return positions in 0 .. size - 1, ascending, and give random numbers to `ids` of the documents, so that a document is
// chosen or not for reasons of its own.

// `count` of them, each as likely as the others.
std::vector<int64_t> pick_random(std::span<const int64_t> ids, int64_t count, const base::Random& random);

// Equally many of each group, at random; a group that is exhausted passes its share on to the others. `groups`: of each document, from 0.
std::vector<int64_t> pick_balanced(std::span<const int64_t> ids, std::span<const int32_t> groups, int64_t count,
                                   const base::Random& random);

enum class ScoreOrder { highest, lowest, middle };
inline constexpr base::EnumName<ScoreOrder> kScoreOrderNames[] = {
    {ScoreOrder::highest, "highest"}, {ScoreOrder::lowest, "lowest"}, {ScoreOrder::middle, "middle"}};
// Those with the highest, the lowest or the middle scores. Of equal scores the smaller id is higher.
std::vector<int64_t> pick_by_score(std::span<const float> scores, int64_t count, ScoreOrder order);

// `count` positions of `among`, without replacement, each draw in proportion to the weights: those with the largest u^(1/weight), where u
// is uniform in (0, 1). Weights of 0 come last.
std::vector<int64_t> draw_weighted(std::span<const int64_t> among, std::span<const int64_t> ids, std::span<const double> weights,
                                   int64_t count, const base::Random& random);

// k-means-quality (kMQ): clusters first, then quality within each.
enum class KmqQuota { proportional, equal };
inline constexpr base::EnumName<KmqQuota> kKmqQuotaNames[] = {{KmqQuota::proportional, "proportional"}, {KmqQuota::equal, "equal"}};
enum class KmqPick { weighted, softmax, top, median };
inline constexpr base::EnumName<KmqPick> kKmqPickNames[] = {
    {KmqPick::weighted, "weighted"}, {KmqPick::softmax, "softmax"}, {KmqPick::top, "top"}, {KmqPick::median, "median"}};
struct KmqOptions {
  int64_t keep = 1;
  KmqQuota quota = KmqQuota::proportional;
  KmqPick pick = KmqPick::weighted;
  uint64_t seed = 0;
};
struct KmqResult {
  std::vector<int64_t> kept;    // positions, ascending
  std::vector<int64_t> sizes;   // of the clusters
  std::vector<int64_t> quotas;  // of the clusters
};
// `quality`: of each document, not negative; empty: all the same (k-means-random). Refuses more clusters than documents to keep where the
// quota is equal, and negative qualities.
KmqResult pick_kmq(std::span<const int64_t> ids, std::span<const int32_t> labels, int64_t clusters, std::span<const float> quality,
                   const KmqOptions& options);

}  // namespace cairn::data
