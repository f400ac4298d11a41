// Topic-aware sampling with balanced margins (TAS-Balanced, arXiv:2104.06967, section 3.2): a batch has queries of few clusters, so the
// other queries' passages are plausible and wrong, and the pair that stands for a query is drawn evenly over the range of its margins.
//
//   until B queries are drawn: choose a cluster, all with the same probability; draw B / n of its queries (the last of n clusters: the
//   rest),
//                              or all that are not in the batch yet, if they are fewer
//   for each query: choose one of its non-empty margin bins, then a pair of it, each evenly
//
// The margins m = score of the right passage - score of the wrong one, as the teacher of the pairs gave them, fall into H bins of equal
// width: bin = min(H - 1, floor(H (m - least) / (most - least))), one bin where all are equal. A step's draw is a function of seed and
// step.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/random.h"
#include "base/text.h"
#include "data/retrieval/dataset.h"
#include "data/sampler.h"

namespace cairn::data {
namespace {

// Random numbers of one step, in the order in which they are asked for.
class Dice {
 public:
  explicit Dice(base::Random random) : random_(random) {}
  size_t below(size_t n) { return static_cast<size_t>(random_.below(next_++, static_cast<uint64_t>(n))); }

 private:
  base::Random random_;
  uint64_t next_ = 0;
};

// The pairs of a query, by margin bin. No bin is empty.
using MarginBins = std::vector<std::vector<int64_t>>;

MarginBins bins_of(const std::vector<int64_t>& pairs, const RetrievalDataset& data, int64_t bins) {
  if (bins == 0) return {pairs};
  const auto margin = [&](int64_t pair) { return data.pair(pair).right_score - data.pair(pair).wrong_score; };
  double least = margin(pairs.front()), most = least;
  for (const int64_t pair : pairs) least = std::min(least, margin(pair)), most = std::max(most, margin(pair));
  std::map<int64_t, std::vector<int64_t>> by_bin;
  for (const int64_t pair : pairs) {
    const double place = most > least ? static_cast<double>(bins) * ((margin(pair) - least) / (most - least)) : 0;
    by_bin[std::min(bins - 1, static_cast<int64_t>(std::floor(place)))].push_back(pair);
  }
  MarginBins all;
  for (auto& [bin, members] : by_bin) all.push_back(std::move(members));
  return all;
}

class Tas final : public Sampler {
 public:
  explicit Tas(const SamplerFacts& facts)
      : data_(*retrieval_samples(facts.samples)),
        batch_(facts.global_batch),
        steps_(facts.steps),
        clusters_per_batch_(facts.options.clusters_per_batch),
        random_(base::Random(facts.seed).for_purpose("data.tas")) {
    if (clusters_per_batch_ > batch_)
      base::fail_input("sampler.clusters_per_batch = {}: a batch has {} queries. Use at most that many.", clusters_per_batch_, batch_);
    gather_pairs(facts);
    gather_clusters(facts.options.clusters.empty() ? data_.clusters() : read_clusters(facts.options.clusters, data_.texts().queries));
  }

  std::vector<int64_t> ids(int64_t step) const override {
    Dice dice(random_.for_index(static_cast<uint64_t>(step)));
    std::vector<int64_t> drawn;  // queries
    std::vector<bool> taken(bins_.size());
    const auto size = static_cast<size_t>(batch_);
    const int64_t quota = batch_ / clusters_per_batch_;
    for (int64_t turn = 0; drawn.size() < size; ++turn) {
      const int64_t wanted = turn == clusters_per_batch_ - 1 ? batch_ - quota * turn : quota;
      std::vector<int64_t> left;
      for (const int64_t query : clusters_[dice.below(clusters_.size())])
        if (!taken[static_cast<size_t>(query)]) left.push_back(query);
      const size_t count = std::min({left.size(), size - drawn.size(), static_cast<size_t>(wanted)});
      for (size_t i = 0; i < count; ++i) {
        std::swap(left[i], left[i + dice.below(left.size() - i)]);
        taken[static_cast<size_t>(left[i])] = true;
        drawn.push_back(left[i]);
      }
    }
    for (int64_t& query : drawn) {
      const MarginBins& bins = bins_[static_cast<size_t>(query)];
      const std::vector<int64_t>& bin = bins[dice.below(bins.size())];
      query = bin[dice.below(bin.size())];
    }
    return drawn;
  }

  int64_t steps() const override { return steps_; }
  double progress(int64_t step) const override { return std::clamp(static_cast<double>(step) / static_cast<double>(steps_), 0.0, 1.0); }
  double epoch(int64_t step) const override { return static_cast<double>(step * batch_) / static_cast<double>(queries_); }
  std::vector<int64_t> positions(int64_t step) const override { return {step * batch_}; }
  std::string schedule_text() const override { return text_; }

 private:
  void gather_pairs(const SamplerFacts& facts) {
    std::vector<std::vector<int64_t>> pairs(static_cast<size_t>(data_.texts().queries.size()));
    for (int64_t place = 0; place < facts.from.size(); ++place) {
      const int64_t id = facts.from.id(place);
      pairs[static_cast<size_t>(data_.pair(id).query)].push_back(id);
    }
    const int64_t bins = facts.options.margin_bins;
    bins_.resize(pairs.size());
    for (size_t query = 0; query < pairs.size(); ++query) {
      if (pairs[query].empty())
        ++without_pairs_;
      else if (pairs[query].size() == 1 && bins > 0)
        ++single_;
      else
        bins_[query] = bins_of(pairs[query], data_, bins);
    }
  }

  void gather_clusters(const std::vector<std::vector<int64_t>>& given) {
    if (given.empty())
      base::fail_input("data.sampler = tas: no clusters of queries. Name a file in sampler.clusters, or set model.from to make them.");
    int64_t dropped = 0;
    for (const std::vector<int64_t>& cluster : given) {
      std::vector<int64_t> kept;
      for (const int64_t query : cluster)
        if (!bins_[static_cast<size_t>(query)].empty()) kept.push_back(query);
      queries_ += static_cast<int64_t>(kept.size());
      kept.empty() ? (void)++dropped : clusters_.push_back(std::move(kept));
    }
    if (queries_ == 0)
      base::fail_input("sampler.clusters: no query is in a cluster and has pairs too. Make the clusters from the queries of data.path.");
    if (queries_ < batch_)
      base::fail_input(
          "train.global_batch = {}: {} queries are in clusters and have pairs, and none comes twice in a batch. Use at most {}.", batch_,
          queries_, queries_);
    const auto with_pairs =
        static_cast<int64_t>(std::count_if(bins_.begin(), bins_.end(), [](const MarginBins& one) { return !one.empty(); }));
    text_ = fmt::format(
        "clusters={} empty_clusters_dropped={} queries={} mean_cluster={:.1f} dropped_without_pairs={} dropped_with_one_pair={} "
        "dropped_without_cluster={}",
        clusters_.size(), dropped, queries_, static_cast<double>(queries_) / static_cast<double>(clusters_.size()), without_pairs_, single_,
        with_pairs - queries_);
  }

  const RetrievalDataset& data_;
  int64_t batch_, steps_, clusters_per_batch_;
  base::Random random_;
  std::vector<MarginBins> bins_;                // by query; empty: it is not drawn
  std::vector<std::vector<int64_t>> clusters_;  // of queries that are drawn; none is empty
  int64_t queries_ = 0, without_pairs_ = 0, single_ = 0;
  std::string text_;
};

}  // namespace

std::unique_ptr<Sampler> make_tas(const SamplerFacts& facts) {
  if (!retrieval_samples(facts.samples)) base::fail_input("data.sampler = tas: it draws queries. Set data.kind = \"retrieval\".");
  return std::make_unique<Tas>(facts);
}

}  // namespace cairn::data
