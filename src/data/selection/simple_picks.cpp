#include "data/selection/simple_picks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "data/selection/quota.h"

namespace cairn::data {
namespace {

std::vector<std::vector<int64_t>> members_of(std::span<const int32_t> labels, int64_t clusters) {
  std::vector<std::vector<int64_t>> members(static_cast<size_t>(clusters));
  for (size_t i = 0; i < labels.size(); ++i) members[static_cast<size_t>(labels[i])].push_back(static_cast<int64_t>(i));
  return members;
}

std::vector<int64_t> sizes_of(const std::vector<std::vector<int64_t>>& members) {
  std::vector<int64_t> sizes;
  for (const auto& one : members) sizes.push_back(static_cast<int64_t>(one.size()));
  return sizes;
}

// The `count` positions with the largest keys; of equal keys the first.
std::vector<int64_t> largest_keys(std::span<const int64_t> among, const std::vector<double>& keys, int64_t count) {
  std::vector<size_t> order(among.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto before = [&](size_t a, size_t b) { return keys[a] != keys[b] ? keys[a] > keys[b] : among[a] < among[b]; };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
  std::vector<int64_t> found;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) found.push_back(among[order[i]]);
  std::ranges::sort(found);
  return found;
}

std::vector<int64_t> all_positions(size_t count) {
  std::vector<int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

std::vector<int64_t> random_among(std::span<const int64_t> among, std::span<const int64_t> ids, int64_t count, const base::Random& random) {
  std::vector<double> keys;
  for (const int64_t position : among) keys.push_back(random.uniform(static_cast<uint64_t>(ids[static_cast<size_t>(position)])));
  return largest_keys(among, keys, count);
}

// The `count` positions of `among` around the middle of their order by score.
std::vector<int64_t> middle_of(std::vector<int64_t> among, std::span<const float> scores, int64_t count) {
  std::ranges::sort(among, [&](int64_t a, int64_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  const auto skipped = static_cast<std::ptrdiff_t>((static_cast<int64_t>(among.size()) - count) / 2);
  std::vector<int64_t> found(among.begin() + skipped, among.begin() + skipped + count);
  std::ranges::sort(found);
  return found;
}

// The positions of one cluster that kMQ keeps.
std::vector<int64_t> pick_in_cluster(const std::vector<int64_t>& members, std::span<const int64_t> ids, std::span<const float> quality,
                                     int64_t quota, KmqPick pick, const base::Random& random) {
  const auto quality_of = [&](int64_t position) {
    return quality.empty() ? 1.0 : static_cast<double>(quality[static_cast<size_t>(position)]);
  };
  if (quality.empty()) return random_among(members, ids, quota, random);
  if (pick == KmqPick::median) return middle_of(members, quality, quota);
  std::vector<double> weights;
  for (const int64_t member : members) weights.push_back(quality_of(member));
  if (pick == KmqPick::top) return largest_keys(members, weights, quota);
  if (pick == KmqPick::softmax) {
    const double most = *std::ranges::max_element(weights);
    for (double& weight : weights) weight = std::exp(weight - most);
  }
  return draw_weighted(members, ids, weights, quota, random);
}

}  // namespace

std::vector<int64_t> pick_random(std::span<const int64_t> ids, int64_t count, const base::Random& random) {
  return random_among(all_positions(ids.size()), ids, count, random.for_purpose("select"));
}

std::vector<int64_t> pick_balanced(std::span<const int64_t> ids, std::span<const int32_t> groups, int64_t count,
                                   const base::Random& random) {
  const int64_t number = groups.empty() ? 0 : *std::ranges::max_element(groups) + 1;
  const auto members = members_of(groups, number);
  const std::vector<int64_t> quotas = capped_shares(std::vector<double>(members.size(), 1.0), sizes_of(members), count, random);
  std::vector<int64_t> kept;
  for (size_t g = 0; g < members.size(); ++g) {
    const std::vector<int64_t> some = random_among(members[g], ids, quotas[g], random.for_purpose("select"));
    kept.insert(kept.end(), some.begin(), some.end());
  }
  std::ranges::sort(kept);
  return kept;
}

std::vector<int64_t> pick_by_score(std::span<const float> scores, int64_t count, ScoreOrder order) {
  const std::vector<int64_t> all = all_positions(scores.size());
  if (order == ScoreOrder::middle) return middle_of(all, scores, count);
  std::vector<double> keys;
  for (const float score : scores) keys.push_back(order == ScoreOrder::highest ? static_cast<double>(score) : -static_cast<double>(score));
  return largest_keys(all, keys, count);
}

std::vector<int64_t> draw_weighted(std::span<const int64_t> among, std::span<const int64_t> ids, std::span<const double> weights,
                                   int64_t count, const base::Random& random) {
  CAIRN_CHECK(weights.size() == among.size() && count <= static_cast<int64_t>(among.size()), "{} draws from {}", count, among.size());
  // log(u) / weight orders as u^(1/weight) does. Where all weights are 0 the order is by u.
  std::vector<double> keys;
  for (size_t i = 0; i < among.size(); ++i) {
    const double u = random.uniform(static_cast<uint64_t>(ids[static_cast<size_t>(among[i])]));
    const double log_u = std::log(std::max(u, 0x1p-54));
    keys.push_back(weights[i] > 0 ? log_u / weights[i] : -1e300 * (1 - u));
  }
  return largest_keys(among, keys, count);
}

KmqResult pick_kmq(std::span<const int64_t> ids, std::span<const int32_t> labels, int64_t clusters, std::span<const float> quality,
                   const KmqOptions& options) {
  for (size_t i = 0; i < quality.size(); ++i)
    if (!std::isfinite(quality[i]) || (quality[i] < 0 && options.pick == KmqPick::weighted))
      base::fail_input("--quality: document {} has the quality {}: draws by weight need numbers from 0 on. Use --pick softmax or top.",
                       ids[i], quality[i]);
  const auto members = members_of(labels, clusters);
  KmqResult result{.kept = {}, .sizes = sizes_of(members), .quotas = {}};
  const auto used = std::ranges::count_if(result.sizes, [](int64_t size) { return size > 0; });
  if (options.quota == KmqQuota::equal && used > options.keep)
    base::fail_input("--quota equal: {} clusters share {} documents, so {} get none. Use fewer --clusters, or --quota proportional.", used,
                     options.keep, used - options.keep);
  std::vector<double> weights;
  for (const int64_t size : result.sizes)
    weights.push_back(options.quota == KmqQuota::equal ? (size > 0 ? 1.0 : 0.0) : static_cast<double>(size));
  const base::Random random = base::Random(options.seed).for_purpose("kmq");
  result.quotas = capped_shares(weights, result.sizes, options.keep, random);
  for (size_t c = 0; c < members.size(); ++c) {
    if (result.quotas[c] == 0) continue;
    const std::vector<int64_t> some = pick_in_cluster(members[c], ids, quality, result.quotas[c], options.pick, random.for_purpose("pick"));
    result.kept.insert(result.kept.end(), some.begin(), some.end());
  }
  std::ranges::sort(result.kept);
  return result;
}

}  // namespace cairn::data
