// RS2: repeated random sampling (Okanovic et al., arXiv:2305.18424). A run of X rounds trains on a new random slice of the data in each:
//
//   round t    n = round(r N) samples: places c, c + 1, .. c + n - 1 of a permutation of all N, then c += n       (without replacement)
//              when fewer than n are left: a new permutation and c = 0                                             (tail = drop)
//   steps      s = floor(n / B) of global batch B in each round, X s in all: schedules cover this short run
//
// N samples, r = sampler.ratio, X = train.epochs. The permutations are those of `shuffled`, so ratio = 1 is ordinary training where B
// divides N. The baseline `fixed` has the same n samples in every round, in another order. With `stratify` each class is a pool of its own
// and supplies round(r N_class) samples, or, where that is less than one, one sample and a share of what the round has left.
#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/random/permutation.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "data/samples/epochs.h"
#include "data/samples/rounds.h"

namespace cairn::data {
namespace {

// Places of the subset by class.
std::vector<std::vector<int64_t>> places_by_class(const SamplerFacts& facts) {
  std::vector<std::vector<int64_t>> classes;
  for (int64_t place = 0; place < facts.from.size(); ++place) {
    const int64_t label = facts.samples ? facts.samples->label_of(facts.from.id(place)) : -1;
    if (label < 0) base::fail_input("sampler.stratify = true: samples have no class. Set data.label, or leave it out.");
    if (label >= static_cast<int64_t>(classes.size())) classes.resize(static_cast<size_t>(label) + 1);
    classes[static_cast<size_t>(label)].push_back(place);
  }
  for (size_t c = 0; c < classes.size(); ++c)
    if (classes[c].empty())
      base::fail_input("sampler.stratify = true: class {} of {} has no training sample. Leave it out, or use other data.", c,
                       classes.size());
  return classes;
}

int64_t share_of(double ratio, int64_t samples) { return std::llround(ratio * static_cast<double>(samples)); }

void check_rounds(const SamplerFacts& facts) {
  const SamplerOptions& o = facts.options;
  check_one_pool(facts, "rs2");
  if (!(o.ratio > 0 && o.ratio <= 1)) base::fail_input("sampler.ratio = {}: must be above 0 and at most 1.", o.ratio);
  if (o.fixed && o.replacement)
    base::fail_input("sampler.replacement = true: sampler.fixed = true draws one subset only. Leave one of them out.");
  if (o.tail == RoundTail::carry && (o.fixed || o.replacement))
    base::fail_input("sampler.tail = carry: only rounds without replacement have a tail. Leave it out.");
}

class Rs2 final : public Sampler {
 public:
  explicit Rs2(const SamplerFacts& facts) : facts_(facts), random_(base::Random(facts.seed).for_purpose("data.rs2")) {
    check_rounds(facts_);
    make_pools();
    const int64_t batch = facts_.global_batch;
    steps_per_round_ = samples_ / batch;
    if (steps_per_round_ == 0)
      base::fail_input(
          "sampler.ratio = {}: a round of {} samples is smaller than train.global_batch = {}. Raise the ratio, or lower the "
          "batch.",
          facts_.options.ratio, samples_, batch);
    if (facts_.epochs > 0) facts_.steps = std::max<int64_t>(1, std::llround(facts_.epochs * static_cast<double>(steps_per_round_)));
  }

  std::vector<int64_t> ids(int64_t step) const override {
    const int64_t number = step / steps_per_round_, first = step % steps_per_round_ * facts_.global_batch;
    const Round round = this->round(number);
    std::vector<int64_t> indices(static_cast<size_t>(facts_.global_batch));  // in the round
    std::iota(indices.begin(), indices.end(), first);
    if (pools_.size() > 1 || facts_.options.fixed) {
      const base::Permutation order(static_cast<uint64_t>(samples_), random_.for_name("order").for_index(static_cast<uint64_t>(number)));
      for (int64_t& index : indices) index = static_cast<int64_t>(order.at(static_cast<uint64_t>(index)));
    }
    if (pools_.size() == 1) return ids_of(pools_[0]->places(round[0], indices), 0);
    return ids_of_classes(round, indices);
  }

  int64_t steps() const override { return facts_.steps; }
  double progress(int64_t step) const override {
    return std::clamp(static_cast<double>(step) / static_cast<double>(facts_.steps), 0.0, 1.0);
  }
  double epoch(int64_t step) const override { return static_cast<double>(step) / static_cast<double>(steps_per_round_); }
  std::vector<int64_t> positions(int64_t step) const override { return {step * facts_.global_batch}; }

  std::vector<std::pair<std::string, double>> metrics(int64_t step) const override {
    if (step % steps_per_round_ != 0) return {};
    const Round round = this->round(step / steps_per_round_);
    double seen = 0;
    for (size_t p = 0; p < pools_.size(); ++p) seen += pools_[p]->seen(round[p]) * static_cast<double>(pools_[p]->size());
    return {{"round", epoch(step)},
            {"cycle", static_cast<double>(round[0].cycle)},
            {"round_samples", static_cast<double>(steps_per_round_ * facts_.global_batch)},
            {"seen_share", seen / static_cast<double>(facts_.from.size())}};
  }

 private:
  using Round = std::vector<RoundPart>;  // by pool

  void make_pools() {
    const SamplerOptions& o = facts_.options;
    if (!o.stratify) {
      const char* key = o.replacement || o.fixed ? "data.rs2" : "data.shuffled";
      pools_.push_back(std::make_unique<RoundPool>(facts_.from.size(), o, base::Random(facts_.seed).for_purpose(key)));
      samples_ = share_of(o.ratio, facts_.from.size());
      counts_ = {samples_};
      return;
    }
    classes_ = places_by_class(facts_);
    for (size_t c = 0; c < classes_.size(); ++c) {
      const auto size = static_cast<int64_t>(classes_[c].size());
      pools_.push_back(std::make_unique<RoundPool>(size, o, random_.for_name("class").for_index(c)));
      counts_.push_back(share_of(o.ratio, size));
    }
    samples_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    if (*std::min_element(counts_.begin(), counts_.end()) > 0) return;
    counts_.clear();  // rounds differ
    samples_ = share_of(o.ratio, facts_.from.size());
    if (samples_ < static_cast<int64_t>(classes_.size()))
      base::fail_input(
          "sampler.ratio = {}: a round of {} samples cannot have one of each of {} classes. Raise the ratio, or use "
          "sampler.stratify = false.",
          o.ratio, samples_, classes_.size());
  }

  // The samples of each class in a round, where some classes are too small for a share of their own.
  std::vector<int64_t> counts_of(int64_t number) const {
    if (!counts_.empty()) return counts_;
    std::vector<int64_t> counts(pools_.size(), 1);
    const base::Permutation order(pools_.size(),
                                  random_.for_name("classes").for_index(facts_.options.fixed ? 0 : static_cast<uint64_t>(number)));
    int64_t left = samples_ - static_cast<int64_t>(pools_.size());
    while (left > 0)
      for (uint64_t i = 0; i < order.size() && left > 0; ++i) {
        const auto pool = static_cast<size_t>(order.at(i));
        if (counts[pool] == pools_[pool]->size()) continue;
        ++counts[pool], --left;
      }
    return counts;
  }

  Round round(int64_t number) const {
    const std::lock_guard lock(mutex_);
    while (static_cast<int64_t>(rounds_.size()) <= number) {
      const std::vector<int64_t> counts = counts_of(static_cast<int64_t>(rounds_.size()));
      Round next;
      for (size_t p = 0; p < pools_.size(); ++p)
        next.push_back(pools_[p]->next(rounds_.empty() ? std::nullopt : std::optional(rounds_.back()[p]), counts[p]));
      rounds_.push_back(std::move(next));
    }
    return rounds_[static_cast<size_t>(number)];
  }

  std::vector<int64_t> ids_of(std::vector<int64_t> places, size_t pool) const {
    for (int64_t& place : places) place = facts_.from.id(classes_.empty() ? place : classes_[pool][static_cast<size_t>(place)]);
    return places;
  }

  // The samples of a round are numbered class by class.
  std::vector<int64_t> ids_of_classes(const Round& round, const std::vector<int64_t>& indices) const {
    std::vector<std::vector<int64_t>> wanted(pools_.size());  // by class: indices in its part
    std::vector<size_t> pools;
    for (int64_t index : indices) {
      size_t pool = 0;
      while (index >= round[pool].count) index -= round[pool++].count;
      wanted[pool].push_back(index);
      pools.push_back(pool);
    }
    std::vector<std::vector<int64_t>> found;
    for (size_t p = 0; p < pools_.size(); ++p) found.push_back(ids_of(pools_[p]->places(round[p], wanted[p]), p));
    std::vector<size_t> next(pools_.size());
    std::vector<int64_t> ids;
    for (const size_t pool : pools) ids.push_back(found[pool][next[pool]++]);
    return ids;
  }

  SamplerFacts facts_;
  const base::Random random_;
  std::vector<std::vector<int64_t>> classes_;      // with stratify: places in the subset
  std::vector<std::unique_ptr<RoundPool>> pools_;  // one, or one of each class
  std::vector<int64_t> counts_;                    // samples of a round from each pool; empty: they differ from round to round
  int64_t samples_ = 0;                            // of a round
  int64_t steps_per_round_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<Round> rounds_;
};

}  // namespace

std::unique_ptr<Sampler> make_rs2(const SamplerFacts& facts) { return std::make_unique<Rs2>(facts); }

}  // namespace cairn::data
