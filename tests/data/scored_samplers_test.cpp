// seta and infobatch: which samples an epoch has, given losses; state and restarts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "base/random.h"
#include "data/sampler.h"
#include "data/samples/loss_groups.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using Ids = std::vector<int64_t>;
using LossOf = std::function<float(int64_t id, int64_t epoch)>;

// The keys of seta and infobatch.
struct ScoredKeys {
  double prune = -1;
  int64_t groups = 10;
  double window = 0.5, stop_at = 0.875;
  UnseenScore unseen = UnseenScore::mean;

  SamplerOptions options() const {
    SamplerOptions options;
    options.prune = prune;
    options.groups = groups;
    options.window = window;
    options.stop_at = stop_at;
    options.unseen = unseen;
    return options;
  }
};

SamplerFacts scored(int64_t samples, int64_t batch, double epochs, const ScoredKeys& keys) {
  return {.from = {0, samples}, .global_batch = batch, .seed = 3, .epochs = epochs, .options = keys.options()};
}

double metric(const Sampler& sampler, const std::string& name, int64_t step) {
  for (const auto& [found, value] : sampler.metrics(step))
    if (found == name) return value;
  return std::numeric_limits<double>::quiet_NaN();
}

struct DrawnEpoch {
  Ids ids;
  std::vector<float> weights;
  double window_first = 0;
};

// Trains an epoch after the other: the sampler gets the loss of every sample that it drew.
std::vector<DrawnEpoch> epochs_of(Sampler& sampler, const LossOf& loss) {
  std::vector<DrawnEpoch> epochs;
  for (int64_t step = 0;; ++step) {
    if (step == 0 || step == sampler.known()) {
      if (step == sampler.steps()) return epochs;
      if (step > 0) sampler.advance();
      epochs.push_back({.ids = {}, .weights = {}, .window_first = metric(sampler, "window_first", step)});
    }
    const Draw draw = sampler.draw(step);
    DrawnEpoch& epoch = epochs.back();
    epoch.ids.insert(epoch.ids.end(), draw.ids.begin(), draw.ids.end());
    epoch.weights.insert(epoch.weights.end(), draw.weights.begin(), draw.weights.end());
    SampleFeedback found{.ids = draw.ids, .losses = {}};
    for (const int64_t id : draw.ids) found.losses.push_back(loss(id, static_cast<int64_t>(epochs.size()) - 1));
    sampler.feedback(found);
  }
}

// The tenths of the samples that an epoch has samples of, where losses are i / N.
std::set<int64_t> tenths(const DrawnEpoch& epoch, int64_t samples) {
  std::set<int64_t> found;
  for (const int64_t id : epoch.ids) found.insert(id * 10 / samples);
  return found;
}

std::set<int64_t> from_to(int64_t first, int64_t last) {
  std::set<int64_t> all;
  for (int64_t i = first; i <= last; ++i) all.insert(i);
  return all;
}

TEST(Seta, SlidesItsWindowFromEasyToHardAndBeginsAgain) {
  const auto sampler = make_sampler("seta", scored(1000, 10, 16, {.groups = 10, .window = 0.5, .stop_at = 0.875}));
  const auto epochs = epochs_of(*sampler, [](int64_t id, int64_t) { return static_cast<float>(id) / 1000; });
  ASSERT_EQ(epochs.size(), 16u);
  EXPECT_EQ(tenths(epochs[0], 1000), from_to(0, 9));
  const std::vector<int64_t> starts{1, 2, 3, 4, 5, 0, 1, 2};
  for (size_t i = 0; i < starts.size(); ++i) {
    EXPECT_EQ(tenths(epochs[i + 1], 1000), from_to(starts[i], starts[i] + 4)) << "epoch " << i + 1;
    EXPECT_EQ(epochs[i + 1].ids.size(), 500u);
  }
  for (const size_t e : {14, 15}) EXPECT_EQ(epochs[e].ids.size(), 1000u) << "epoch " << e;  // from 0.875 * 16 on
  EXPECT_EQ(epochs[13].ids.size(), 500u);
}

TEST(Seta, LeavesAShareOutAtRandomInEveryEpoch) {
  const auto sampler = make_sampler("seta", scored(1000, 10, 8, {.prune = 0.3, .groups = 5, .window = 0.8}));
  const auto epochs = epochs_of(*sampler, [](int64_t id, int64_t) { return static_cast<float>(id) / 1000; });
  EXPECT_EQ(epochs[0].ids.size(), 700u);
  EXPECT_NE(epochs[0].ids, epochs[7].ids);
  EXPECT_EQ(epochs[7].ids.size(), 700u);
  for (size_t e = 1; e < 7; ++e) EXPECT_NEAR(static_cast<double>(epochs[e].ids.size()), 560, 30) << e;
  EXPECT_LT(sampler->steps(), 8 * 70);
  EXPECT_EQ(sampler->progress(sampler->steps()), 1.0);
}

TEST(Seta, FollowsProgressByEpochs) {
  const auto sampler = make_sampler("seta", scored(100, 10, 4, {.groups = 4, .window = 0.5, .stop_at = 1}));
  EXPECT_EQ(sampler->known(), 10);
  EXPECT_EQ(sampler->steps(), 40);  // an estimate
  EXPECT_DOUBLE_EQ(sampler->progress(5), 0.125);
  Ids all(100);
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> losses(all.begin(), all.end());
  sampler->feedback({all, losses});
  sampler->advance();
  EXPECT_EQ(sampler->known(), 15);
  EXPECT_EQ(sampler->steps(), 35);
  EXPECT_DOUBLE_EQ(sampler->progress(10), 0.25);
  EXPECT_DOUBLE_EQ(sampler->progress(15), 0.5);
  EXPECT_EQ(metric(*sampler, "kept_share", 10), 0.5);
  EXPECT_EQ(metric(*sampler, "kept_share_so_far", 10), 0.75);
  EXPECT_TRUE(sampler->metrics(11).empty());
}

// A batch at least: the window takes in neighbours.
TEST(Seta, WidensAWindowThatDoesNotFillABatch) {
  const auto sampler = make_sampler("seta", scored(120, 40, 4, {.groups = 4, .window = 0.25, .stop_at = 1}));
  const auto epochs = epochs_of(*sampler, [](int64_t id, int64_t) { return static_cast<float>(id / 30); });
  EXPECT_EQ(epochs[1].ids.size(), 40u);  // of the 60 of groups 1 and 2
  for (const int64_t id : epochs[1].ids) EXPECT_TRUE(id >= 30 && id < 90) << id;
}

TEST(Seta, GivesUnseenSamplesTheMeanOrTheLargestLoss) {
  for (const UnseenScore how : {UnseenScore::mean, UnseenScore::max}) {
    const auto sampler = make_sampler("seta", scored(100, 10, 4, {.groups = 3, .window = 0.34, .stop_at = 1, .unseen = how}));
    SampleFeedback found;
    for (int64_t id = 0; id < 50; ++id) found.ids.push_back(id), found.losses.push_back(id < 25 ? 1.0f : 9.0f);
    sampler->feedback(found);
    sampler->advance();  // the window is the middle one of three groups
    std::set<int64_t> ids;
    for (int64_t step = 10; step < sampler->known(); ++step)
      for (const int64_t id : sampler->draw(step).ids) ids.insert(id);
    EXPECT_EQ(ids.lower_bound(25) != ids.end() && *ids.lower_bound(25) < 50, how == UnseenScore::max);
    EXPECT_EQ(*ids.rbegin(), 99);
  }
}

TEST(InfoBatch, KeepsHardSamplesAndAWeightedShareOfEasyOnes) {
  const auto sampler = make_sampler("infobatch", scored(1000, 10, 8, {}));
  const auto epochs = epochs_of(*sampler, [](int64_t id, int64_t) { return id < 600 ? 1.0f : 2.0f; });
  EXPECT_EQ(epochs[0].ids.size(), 1000u);
  for (size_t e = 1; e < 7; ++e) {
    std::set<int64_t> low, high;
    for (size_t i = 0; i < epochs[e].ids.size(); ++i) {
      const int64_t id = epochs[e].ids[i];
      EXPECT_EQ(epochs[e].weights[i], id < 600 ? 2.0f : 1.0f);
      (id < 600 ? low : high).insert(id);
    }
    EXPECT_EQ(low.size(), 300u);
    EXPECT_EQ(high.size(), 400u);
    const auto last = std::count_if(epochs[e].ids.end() - 100, epochs[e].ids.end(), [](int64_t id) { return id < 600; });
    EXPECT_NEAR(static_cast<double>(last), 43, 25);  // easy and hard ones are mixed
  }
  EXPECT_EQ(epochs[7].ids.size(), 1000u);
  EXPECT_TRUE(epochs[7].weights.empty());  // no weight survives into annealing
}

// With a fixed score and gradient per sample, the weighted sum over an epoch has the full sum as its mean.
TEST(InfoBatch, IsUnbiased) {
  constexpr int64_t kSamples = 200, kDims = 8, kTrials = 2000;
  const base::Random random(11);
  const auto gradient = [&](int64_t id, int64_t dim) { return 1 + random.normal(static_cast<uint64_t>(id * kDims + dim)); };
  const auto score = [&](int64_t id) {
    return static_cast<float>(std::exp(random.for_purpose("score").normal(static_cast<uint64_t>(id))));
  };
  std::vector<double> full(kDims), sum(kDims), squares(kDims);
  for (int64_t id = 0; id < kSamples; ++id)
    for (int64_t d = 0; d < kDims; ++d) full[static_cast<size_t>(d)] += gradient(id, d);
  Ids all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> scores;
  for (const int64_t id : all) scores.push_back(score(id));
  for (int64_t trial = 0; trial < kTrials; ++trial) {
    SamplerFacts facts = scored(kSamples, 1, 3, {.stop_at = 1});
    facts.seed = static_cast<uint64_t>(trial);
    const auto sampler = make_sampler("infobatch", facts);
    sampler->feedback({all, scores});
    sampler->advance();
    std::vector<double> of_epoch(kDims);
    for (int64_t step = kSamples; step < sampler->known(); ++step) {
      const Draw draw = sampler->draw(step);
      for (int64_t d = 0; d < kDims; ++d)
        of_epoch[static_cast<size_t>(d)] += static_cast<double>(draw.weights[0]) * gradient(draw.ids[0], d);
    }
    for (size_t d = 0; d < of_epoch.size(); ++d) sum[d] += of_epoch[d], squares[d] += of_epoch[d] * of_epoch[d];
  }
  // An odd number of easy samples cannot be halved: floor((1 - r) |low|) is below it by half a sample at most.
  for (size_t d = 0; d < full.size(); ++d) {
    const double mean = sum[d] / kTrials, deviation = std::sqrt(squares[d] / kTrials - mean * mean);
    EXPECT_LT(std::abs(mean - full[d]), 4 * deviation / std::sqrt(kTrials) + 2) << d;
    EXPECT_LT(std::abs(mean / full[d] - 1), 0.01) << d;
  }
}

TEST(InfoBatch, CountsEqualLossesAsHard) {
  const auto sampler = make_sampler("infobatch", scored(1000, 10, 4, {}));
  const auto epochs = epochs_of(*sampler, [](int64_t, int64_t) { return 2.9999f; });
  EXPECT_EQ(epochs[1].ids.size(), 1000u);
}

// A copy of the state in the middle of an epoch gives the rest of it, and the epochs after it.
TEST(ScoredEpochs, GoOnFromTheirState) {
  for (const std::string& name : {std::string("seta"), std::string("infobatch")}) {
    const SamplerFacts facts = scored(300, 10, 5, {.prune = 0.2, .groups = 3, .window = 0.7});
    const auto loss = [](int64_t id, int64_t step) { return static_cast<float>(std::sin(static_cast<double>(id + 37 * step)) + 1); };
    const auto train = [&](Sampler& sampler, int64_t from, int64_t to) {
      std::vector<Ids> drawn;
      for (int64_t step = from; step < std::min(to, sampler.steps()); ++step) {
        if (step == sampler.known()) sampler.advance();
        const Draw draw = sampler.draw(step);
        SampleFeedback found{.ids = draw.ids, .losses = {}};
        for (const int64_t id : draw.ids) found.losses.push_back(loss(id, step));
        sampler.feedback(found);
        drawn.push_back(draw.ids);
      }
      return drawn;
    };
    const auto whole = make_sampler(name, facts), first = make_sampler(name, facts), second = make_sampler(name, facts);
    const std::vector<Ids> expected = train(*whole, 0, 1000);
    const int64_t stop = 37;  // in the second epoch
    train(*first, 0, stop);
    ASSERT_NE(first->known(), stop);
    const mesh::NamedTensors from = first->state(), into = second->state();
    for (size_t i = 0; i < from.size(); ++i) into[i].tensor.copy_(from[i].tensor);
    second->restored();
    EXPECT_EQ(second->hash(), first->hash());
    const std::vector<Ids> rest = train(*second, stop, 1000);
    EXPECT_EQ(rest, std::vector<Ids>(expected.begin() + stop, expected.end())) << name;
  }
}

TEST(ScoredEpochs, ReplaceLossesThatAreNotFinite) {
  const auto sampler = make_sampler("seta", scored(100, 10, 4, {.groups = 2, .window = 0.5, .stop_at = 1}));
  SampleFeedback found;
  for (int64_t id = 0; id < 100; ++id) found.ids.push_back(id), found.losses.push_back(id < 50 ? 1.0f : 2.0f);
  found.losses[3] = std::numeric_limits<float>::infinity();
  found.losses[4] = std::numeric_limits<float>::quiet_NaN();
  sampler->feedback(found);
  sampler->advance();
  EXPECT_EQ(metric(*sampler, "not_finite", 10), 2);
  EXPECT_EQ(metric(*sampler, "group_1_size", 10), 52);  // of the largest loss
}

TEST(ScoredEpochs, DrawFromASubsetOfAnyIds) {
  SamplerFacts facts = scored(0, 2, 3, {.groups = 2, .window = 0.5, .stop_at = 1});
  facts.from = Subset::of({70, 30, 50, 90});
  const auto sampler = make_sampler("seta", facts);
  sampler->feedback({{70, 30, 50, 90}, {1, 2, 1, 2}});
  sampler->advance();
  EXPECT_EQ((std::set<int64_t>{sampler->draw(2).ids[0], sampler->draw(2).ids[1]}), (std::set<int64_t>{30, 90}));
}

TEST(ScoredEpochs, RefuseWhatTheyCannotDo) {
  const auto refused = [](const std::string& name, double epochs, const ScoredKeys& keys, int64_t batch = 10) {
    return refusal([&] { make_sampler(name, scored(100, batch, epochs, keys)); });
  };
  EXPECT_EQ(refused("seta", 2, {}),
            "train.epochs = 2: data.sampler = seta decides by the losses of the epochs before. Use a whole number from 3 on.");
  EXPECT_EQ(refused("infobatch", 3.5, {}),
            "train.epochs = 3.5: data.sampler = infobatch decides by the losses of the epochs before. Use a whole number from 3 on.");
  EXPECT_EQ(refused("seta", 4, {.groups = 10, .window = 0.04}),
            "sampler.window = 0.04: it selects none of sampler.groups = 10. Raise one of them.");
  EXPECT_EQ(refused("seta", 4, {.prune = 0.9, .groups = 10}),
            "sampler.groups = 10: only 10 samples are kept. Use fewer groups, or a smaller sampler.prune.");
  EXPECT_EQ(refused("seta", 4, {.stop_at = 0}), "sampler.stop_at = 0: must be above 0 and at most 1.");
  EXPECT_EQ(refused("infobatch", 4, {.prune = -0.5}), "sampler.prune = -0.5: must be from 0 to 0.9, or -1 for the method's own.");
  EXPECT_EQ(refused("seta", 4, {.prune = 0.5, .groups = 3}, 60),
            "train.global_batch = 60: an epoch of 50 samples has no whole batch. Lower it, or sampler.prune.");
}

TEST(LossGroups, AreThoseOfKMeans) {
  const std::vector<float> losses{5, 0.1f, 5.2f, 0.2f, 1.1f, 0.15f, 0.9f, 5.1f};
  const LossGroups found = group_losses(losses, 3);
  EXPECT_EQ(found.group, (std::vector<int32_t>{2, 0, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(found.sizes, (std::vector<int64_t>{3, 2, 3}));
  EXPECT_NEAR(found.centers[0], 0.15, 1e-6);
  EXPECT_NEAR(found.centers[1], 1.0, 1e-6);
  EXPECT_NEAR(found.centers[2], 5.1, 1e-6);
}

TEST(LossGroups, OfEqualLossesAreEqualChunks) {
  const LossGroups found = group_losses(std::vector<float>(10, 3.0f), 4);
  EXPECT_EQ(found.sizes, (std::vector<int64_t>{3, 2, 3, 2}));
  EXPECT_TRUE(std::is_sorted(found.group.begin(), found.group.end()));
}

// Above a million losses a histogram stands for them: centres differ by less than one of its bins.
TEST(LossGroups, OfAHistogramAreWithinOneBin) {
  const base::Random random(4);
  std::vector<float> losses;
  for (uint64_t i = 0; i < 1'000'000; ++i) losses.push_back(static_cast<float>(-std::log(random.uniform(i) + 1e-9)));
  const LossGroups exact = group_losses(losses, 5);
  losses.push_back(losses.front());
  const LossGroups binned = group_losses(losses, 5);
  const double bin = static_cast<double>(*std::max_element(losses.begin(), losses.end())) / 4096;
  for (size_t k = 0; k < 5; ++k) EXPECT_NEAR(binned.centers[k], exact.centers[k], bin) << k;
}

}  // namespace
}  // namespace cairn::data
