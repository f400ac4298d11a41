// InfoBatch: unbiased pruning by loss (Qin et al., arXiv:2303.04947). With s_i the last loss of sample i and m the mean of the known ones:
//
//   low = {i : s_i < m}                       samples without a loss count as high
//   an epoch trains on all high samples with weight 1, and on a random subset of floor((1 - r) |low|) low ones with weight 1 / (1 - r)
//
// so that the expected sum of gradients is that of all samples. Steps are fewer, and their mean gradient is larger by that factor: weights
// are not renormalised. r = sampler.prune (0.5). From stop_at of the run on, and while no loss is known, an epoch has all samples.
#include <cmath>

#include "base/random.h"
#include "base/random/permutation.h"
#include "data/samples/scored_epochs.h"

namespace cairn::data {
namespace {

constexpr double kInfobatchPrune = 0.5;

struct MeanScore {
  double mean = 0;
  int64_t known = 0;
};

MeanScore mean_of(std::span<const float> scores) {
  MeanScore found;
  double sum = 0;
  for (const float score : scores) {
    if (std::isnan(score)) continue;
    sum += static_cast<double>(score);
    ++found.known;
  }
  if (found.known > 0) found.mean = sum / static_cast<double>(found.known);
  return found;
}

EpochChoice choose_unbiased(const SamplerFacts& facts, double prune, int64_t epoch, std::span<const float> scores) {
  const auto samples = static_cast<int64_t>(scores.size());
  EpochChoice choice{.places = random_places(samples, facts.seed, "data.infobatch", epoch)};
  const MeanScore found = mean_of(scores);
  if (epoch >= first_full_epoch(facts) || found.known == 0) return choice;
  const auto is_low = [&](int64_t place) { return static_cast<double>(scores[static_cast<size_t>(place)]) < found.mean; };  // NaN is high
  std::vector<int64_t> rank(scores.size(), -1);  // of each low sample among them
  int64_t low = 0;
  for (int64_t place = 0; place < samples; ++place)
    if (is_low(place)) rank[static_cast<size_t>(place)] = low++;
  choice.metrics = {{"mean_loss", found.mean}, {"low", static_cast<double>(low)}};
  if (low == 0) return choice;
  const auto kept = static_cast<uint64_t>(kept_of(prune, low));
  const base::Permutation lottery(static_cast<uint64_t>(low),
                                  base::Random(facts.seed).for_purpose("data.infobatch.low").for_index(static_cast<uint64_t>(epoch)));
  std::vector<int64_t> places;
  for (const int64_t place : choice.places) {
    const int64_t of_low = rank[static_cast<size_t>(place)];
    if (of_low >= 0 && lottery.at(static_cast<uint64_t>(of_low)) >= kept) continue;
    places.push_back(place);
    choice.weights.push_back(of_low >= 0 ? static_cast<float>(1 / (1 - prune)) : 1.0f);
  }
  choice.places = std::move(places);
  return choice;
}

}  // namespace

std::unique_ptr<Sampler> make_infobatch(const SamplerFacts& facts) {
  const double prune = prune_share(facts.options, kInfobatchPrune);
  return make_scored_epochs(facts, "infobatch", facts.from.size(), [facts, prune](int64_t epoch, std::span<const float> scores) {
    return choose_unbiased(facts, prune, epoch, scores);
  });
}

}  // namespace cairn::data
