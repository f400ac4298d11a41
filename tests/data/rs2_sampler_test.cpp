// rs2: random rounds, without replacement and with, by class, with a carried tail.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/random.h"
#include "data/batch_split.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using Ids = std::vector<int64_t>;

// Samples of so many classes: the label of a sample is the class whose part of the ids it lies in.
class Labelled final : public Dataset {
 public:
  explicit Labelled(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  SampleRange training() const override { return {0, std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0})}; }
  SampleRange held_out() const override { return {}; }
  int64_t tokens_in(int64_t) const override { return 1; }
  void fill(std::span<const int64_t>, mesh::Batch&) const override {}
  int64_t label_of(int64_t sample) const override {
    int64_t label = 0;
    while (sample >= sizes_[static_cast<size_t>(label)]) sample -= sizes_[static_cast<size_t>(label++)];
    return label;
  }

 private:
  std::vector<int64_t> sizes_;
};

// The keys of rs2.
struct Rs2Keys {
  double ratio = 0.1;
  bool replacement = false, fixed = false, stratify = false;
  RoundTail tail = RoundTail::drop;

  SamplerOptions options() const {
    SamplerOptions options;
    options.ratio = ratio;
    options.replacement = replacement;
    options.fixed = fixed;
    options.stratify = stratify;
    options.tail = tail;
    return options;
  }
};

SamplerFacts rounds_of(int64_t samples, int64_t batch, double rounds, const Rs2Keys& keys) {
  return {.from = {100, samples}, .global_batch = batch, .seed = 5, .epochs = rounds, .options = keys.options()};
}

std::vector<Ids> rounds(const Sampler& sampler, int64_t steps_per_round) {
  std::vector<Ids> all(static_cast<size_t>(sampler.steps() / steps_per_round));
  for (int64_t step = 0; step < sampler.steps(); ++step) {
    const Ids ids = sampler.draw(step).ids;
    Ids& round = all[static_cast<size_t>(step / steps_per_round)];
    round.insert(round.end(), ids.begin(), ids.end());
  }
  return all;
}

std::map<int64_t, int64_t> histogram(std::span<const Ids> rounds) {
  std::map<int64_t, int64_t> counts;
  for (const Ids& round : rounds)
    for (const int64_t id : round) ++counts[id];
  return counts;
}

bool has_repeats(Ids ids) {
  std::sort(ids.begin(), ids.end());
  return std::adjacent_find(ids.begin(), ids.end()) != ids.end();
}

TEST(Rs2, DrawsEverySampleOncePerCycle) {
  const auto sampler = make_sampler("rs2", rounds_of(200, 10, 50, {.ratio = 0.2}));
  EXPECT_EQ(sampler->steps(), 50 * 4);
  const std::vector<Ids> all = rounds(*sampler, 4);
  for (int64_t cycle = 0; cycle < 10; ++cycle) {
    const auto counts = histogram({all.data() + 5 * cycle, 5});
    EXPECT_EQ(counts.size(), 200u);
    for (const auto& [id, count] : counts) EXPECT_EQ(count, 1) << id;
  }
  for (const auto& [id, count] : histogram(all)) EXPECT_EQ(count, 10) << id;
  EXPECT_NE(Ids(all[0]), Ids(all[5]));
}

TEST(Rs2, OfRatioOneIsTheShuffledSampler) {
  const SamplerFacts facts = rounds_of(120, 8, 5, {.ratio = 1});
  const auto rs2 = make_sampler("rs2", facts), shuffled = make_sampler("shuffled", facts);
  ASSERT_EQ(rs2->steps(), shuffled->steps());
  for (int64_t step = 0; step < rs2->steps(); ++step) {
    EXPECT_EQ(rs2->draw(step).ids, shuffled->draw(step).ids) << step;
    EXPECT_EQ(rs2->progress(step), shuffled->progress(step));
  }
}

TEST(Rs2, DropsTheTailOfACycleAndThatOfARound) {
  const auto sampler = make_sampler("rs2", rounds_of(100, 8, 20, {.ratio = 0.3}));  // rounds of 30 samples, 24 of them in batches
  const std::vector<Ids> all = rounds(*sampler, 3);
  for (size_t cycle = 0; cycle + 3 <= all.size(); cycle += 3) {
    const auto counts = histogram({all.data() + cycle, 3});
    EXPECT_EQ(counts.size(), 72u) << cycle;
  }
}

TEST(Rs2, CarriesTheTailWithoutARepeatInARound) {
  for (const double ratio : {0.3, 0.4, 0.7, 0.9}) {
    const auto size = static_cast<int64_t>(std::llround(ratio * 100));
    const auto sampler = make_sampler("rs2", rounds_of(100, 10, 30, {.ratio = ratio, .tail = RoundTail::carry}));
    const std::vector<Ids> all = rounds(*sampler, size / 10);
    Ids together;
    for (const Ids& round : all) {
      EXPECT_FALSE(has_repeats(round)) << ratio;
      together.insert(together.end(), round.begin(), round.end());
    }
    for (size_t cycle = 0; (cycle + 1) * 100 <= together.size(); ++cycle)
      EXPECT_FALSE(has_repeats(
          {together.begin() + static_cast<std::ptrdiff_t>(cycle * 100), together.begin() + static_cast<std::ptrdiff_t>(cycle * 100 + 100)}))
          << ratio << ", cycle " << cycle;
    // Asked for at a later step first, as after a restart.
    const auto again = make_sampler("rs2", rounds_of(100, 10, 30, {.ratio = ratio, .tail = RoundTail::carry}));
    for (int64_t step = sampler->steps() - 1; step >= 0; step -= 7) EXPECT_EQ(again->draw(step).ids, sampler->draw(step).ids) << ratio;
  }
}

TEST(Rs2, WithReplacementDrawsRoundsThatDoNotDependOnEachOther) {
  const auto sampler = make_sampler("rs2", rounds_of(1000, 100, 40, {.ratio = 0.1, .replacement = true}));
  const std::vector<Ids> all = rounds(*sampler, 1);
  for (const Ids& round : all) EXPECT_FALSE(has_repeats(round));
  const auto counts = histogram(all);
  const double expected = 1000 * (1 - std::pow(0.9, 40));  // 985; the deviation is below 4
  EXPECT_NEAR(static_cast<double>(counts.size()), expected, 25);
}

TEST(Rs2, FixedDrawsTheSameSamplesInNewOrders) {
  const auto sampler = make_sampler("rs2", rounds_of(1000, 25, 6, {.ratio = 0.1, .fixed = true}));
  std::vector<Ids> all = rounds(*sampler, 4);
  EXPECT_EQ(histogram(all).size(), 100u);
  EXPECT_NE(all[0], all[1]);
}

TEST(Rs2, StratifiesByClass) {
  const Labelled samples({600, 300, 100});
  SamplerFacts facts = rounds_of(1000, 10, 30, {.ratio = 0.1, .stratify = true});
  facts.from = {0, 1000};
  facts.samples = &samples;
  const auto sampler = make_sampler("rs2", facts);
  const std::vector<Ids> all = rounds(*sampler, 10);
  for (const Ids& round : all) {
    std::map<int64_t, int64_t> classes;
    for (const int64_t id : round) ++classes[samples.label_of(id)];
    EXPECT_EQ(classes, (std::map<int64_t, int64_t>{{0, 60}, {1, 30}, {2, 10}}));
    EXPECT_FALSE(has_repeats(round));
  }
  for (const auto& [id, count] : histogram({all.data(), 10})) EXPECT_EQ(count, 1) << id;
}

TEST(Rs2, GivesSmallClassesOneSampleEach) {
  const Labelled samples({500, 480, 12, 8});
  SamplerFacts facts = rounds_of(1000, 10, 30, {.ratio = 0.02, .stratify = true});
  facts.from = {0, 1000};
  facts.samples = &samples;
  const auto sampler = make_sampler("rs2", facts);
  for (const Ids& round : rounds(*sampler, 2)) {
    std::set<int64_t> classes;
    for (const int64_t id : round) classes.insert(samples.label_of(id));
    EXPECT_EQ(classes.size(), 4u);
    EXPECT_FALSE(has_repeats(round));
  }
}

TEST(Rs2, GivesAnyNumberOfReplicasTheSameBatches) {
  const auto sampler = make_sampler("rs2", rounds_of(103, 10, 9, {.ratio = 0.5}));
  for (const int replicas : {1, 2, 4}) {
    Ids together;
    for (int replica = 0; replica < replicas; ++replica) {
      const Ids global = sampler->draw(7).ids;
      const BatchRange own = replica_range(10, replica, replicas);
      together.insert(together.end(), global.begin() + own.first, global.begin() + own.first + own.count);
    }
    EXPECT_EQ(together, sampler->draw(7).ids) << replicas;
  }
}

TEST(Rs2, SaysWhatARoundDraws) {
  const auto sampler = make_sampler("rs2", rounds_of(200, 10, 50, {.ratio = 0.2}));
  EXPECT_TRUE(sampler->metrics(1).empty());
  const auto metrics = sampler->metrics(2 * 4);
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_EQ(metrics[0], (std::pair<std::string, double>{"round", 2}));
  EXPECT_EQ(metrics[3].first, "seen_share");
  EXPECT_NEAR(metrics[3].second, 0.6, 1e-12);
  EXPECT_NEAR(sampler->metrics(7 * 4)[3].second, 1, 1e-12);
}

TEST(Rs2, DrawsFromABillionSamplesWithoutStoringThem) {
  const auto sampler =
      make_sampler("rs2", {.from = {0, 1'000'000'000}, .global_batch = 1000, .epochs = 3, .options = Rs2Keys{.ratio = 0.01}.options()});
  EXPECT_EQ(sampler->steps(), 3 * 10'000);
  const Ids ids = sampler->draw(29'999).ids;
  EXPECT_FALSE(has_repeats(ids));
  EXPECT_GT(*std::max_element(ids.begin(), ids.end()), 900'000'000);
}

TEST(Rs2, RefusesWhatCannotBeARound) {
  const auto refused = [](const Rs2Keys& keys, std::vector<Stream> streams = {}) {
    return refusal([&] {
      SamplerFacts facts = rounds_of(1000, 64, 5, keys);
      facts.streams = streams;
      make_sampler("rs2", facts);
    });
  };
  EXPECT_EQ(refused({.ratio = 0.04}),
            "sampler.ratio = 0.04: a round of 40 samples is smaller than train.global_batch = 64. Raise the ratio, or lower the batch.");
  EXPECT_EQ(refused({.ratio = 1.5}), "sampler.ratio = 1.5: must be above 0 and at most 1.");
  EXPECT_EQ(refused({.ratio = 0}), "sampler.ratio = 0: must be above 0 and at most 1.");
  EXPECT_EQ(refused({.ratio = 0.5, .stratify = true}), "sampler.stratify = true: samples have no class. Set data.label, or leave it out.");
  EXPECT_EQ(refused({.ratio = 0.5, .replacement = true, .fixed = true}),
            "sampler.replacement = true: sampler.fixed = true draws one subset only. Leave one of them out.");
  EXPECT_EQ(refused({.ratio = 0.5, .replacement = true, .tail = RoundTail::carry}),
            "sampler.tail = carry: only rounds without replacement have a tail. Leave it out.");
  EXPECT_EQ(refused({.ratio = 0.5}, {{{100, 500}, 1}, {{600, 500}, 2}}),
            "data.weights: data.sampler = rs2 draws equally from all samples. Leave the weights out, or use data.sampler = shuffled.");
  const Labelled gap({500, 0, 500});
  SamplerFacts facts = rounds_of(1000, 64, 5, {.ratio = 0.5, .stratify = true});
  facts.from = {0, 1000};
  facts.samples = &gap;
  EXPECT_EQ(refusal([&] { make_sampler("rs2", facts); }),
            "sampler.stratify = true: class 1 of 3 has no training sample. Leave it out, or use other data.");
}

}  // namespace
}  // namespace cairn::data
