#include "study/iterate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <poll.h>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "study/iterate_select.h"
#include "study/study_table.h"

namespace cairn::study {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;

const base::Random kRandom(5);

TEST(DrawMembers, TakesTheHighestOrTheMiddle) {
  const std::vector<int64_t> among{0, 2, 4, 5}, ids{10, 11, 12, 13, 14, 15};
  const std::vector<double> quality{1, 9, 7, 9, 3, 5};
  EXPECT_THAT(draw_members("top", among, ids, quality, 2, kRandom), ElementsAre(2, 5));
  EXPECT_THAT(draw_members("median", among, ids, quality, 2, kRandom), ElementsAre(4, 5));
  EXPECT_EQ(draw_members("weighted", among, ids, {}, 4, kRandom), among);
}

TEST(DrawMembers, PrefersQuality) {
  const std::vector<int64_t> ids{0, 1};
  const std::vector<double> quality{1, 4};
  int weighted = 0, softmax = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    weighted += draw_members("weighted", ids, ids, quality, 1, kRandom.for_index(i)).front() == 1;
    softmax += draw_members("softmax", ids, ids, quality, 1, kRandom.for_index(i)).front() == 1;
  }
  EXPECT_NEAR(weighted / 2000.0, 0.8, 0.04);
  EXPECT_NEAR(softmax / 2000.0, 1 / (1 + std::exp(-3.0)), 0.03);
}

TEST(UpdatedWeights, MultipliesByTheExponentialOfTheScores) {
  const std::vector<double> half{0.5, 0.5};
  EXPECT_THAT(updated_weights(half, std::vector<double>{std::log(3.0), 0}, false, 0), Pointwise(DoubleNear(1e-12), {0.75, 0.25}));
  const std::vector<double> uneven{0.9, 0.1};
  EXPECT_THAT(updated_weights(uneven, std::vector<double>{0, 0}, false, 0), Pointwise(DoubleNear(1e-12), {0.9, 0.1}));
  EXPECT_THAT(updated_weights(uneven, std::vector<double>{0, 0}, true, 0), Pointwise(DoubleNear(1e-12), {0.5, 0.5}));
}

TEST(UpdatedWeights, GivesUnscoredClustersTheMeanAndNobodyLessThanTheFloor) {
  const std::vector<double> third(3, 1.0 / 3);
  const std::vector<double> scores{std::log(2.0), NAN, 0};  // gains 1, 0.75, 0.5
  EXPECT_THAT(updated_weights(third, scores, false, 0), Pointwise(DoubleNear(1e-12), {4.0 / 9, 3.0 / 9, 2.0 / 9}));
  EXPECT_THAT(updated_weights(third, std::vector<double>{NAN, NAN, NAN}, false, 0), Pointwise(DoubleNear(1e-12), third));
  const std::vector<double> one = updated_weights(third, std::vector<double>{1000, -1000, -1000}, false, 0.3);
  EXPECT_NEAR(one[1], 0.1 / 1.2, 1e-3);  // scores are clipped, weights raised to 0.1 and normalised
  EXPECT_NEAR(std::accumulate(one.begin(), one.end(), 0.0), 1, 1e-12);
}

class Iterations : public testing::Test {
 protected:
  Iterations() {
    write_study_table(folder_, "pool.csv", 240, 1, 3);
    write_study_table(folder_, "test.csv", 60, 2);
  }
  base::Recipe::File file(const std::string& study) const {
    return {
        .text = fmt::format("[study]\nkind = \"iterate\"\nbudget = 61\nclusters = 6\nround_steps = 6\n{}\n[model]\nkind = "
                            "\"classifier\"\nhidden = [8]\n[data]\nkind = \"table\"\npath = \"{}\"\ntest_file = \"{}\"\nignore = "
                            "[\"group\", \"right\", \"wrong\"]\n[train]\nseed = 3\nsteps = 10\nglobal_batch = 10\n[optim]\nlearning_rate "
                            "= 0.01\nwarmup_steps = 0\n[log]\ntensorboard = false\ntrace = false\n[eval]\nevery = 0\n[snapshot]\nevery = "
                            "4\n",
                            study, (folder_ / "pool.csv").string(), (folder_ / "test.csv").string()),
        .name = "study.toml"};
  }
  IterateResult run(const std::string& study, const std::string& out = "out", int ranks = 1, const base::Stop* stop = nullptr) const {
    const IterateRecipe recipe = read_iterate(file(study), {});
    IterateResult found;
    on_study_ranks(ranks, [&](comm::World& world) {
      IterateResult mine = run_iterate(world, recipe, {.out = folder_ / out}, stop ? *stop : never_);
      if (world.rank() == 0) found = std::move(mine);
    });
    return found;
  }
  std::string refused(const std::string& study) const {
    return answer_to([&] { run(study, "refused"); });
  }

  std::string refused_with(const std::string& set) const {
    const IterateRecipe recipe = read_iterate(file(""), {set});
    return answer_to(
        [&] { on_study_ranks(1, [&](comm::World& world) { run_iterate(world, recipe, {.out = folder_ / "refused"}, never_); }); });
  }

  harness::ScratchFolder folder_;
  base::Stop never_;
};

TEST_F(Iterations, EachRoundAddsItsPartOfTheBudget) {
  const IterateResult result = run("scorer = \"reference\"\nreference = \"right\"");
  ASSERT_EQ(result.rounds.size(), 3u);
  std::set<int64_t> all;
  std::vector<size_t> added;
  for (const IterateRound& one : result.rounds) {
    added.push_back(one.added.size());
    all.insert(one.added.begin(), one.added.end());
    EXPECT_NEAR(std::accumulate(one.weights.begin(), one.weights.end(), 0.0), 1, 1e-12);
    EXPECT_EQ(std::accumulate(one.quotas.begin(), one.quotas.end(), int64_t{0}), static_cast<int64_t>(one.added.size()));
  }
  EXPECT_THAT(added, ElementsAre(20, 20, 21));
  EXPECT_EQ(all.size(), 61u);
  EXPECT_EQ(std::vector<int64_t>(all.begin(), all.end()), result.selected);
  EXPECT_NE(result.weights, result.rounds.front().weights);
  EXPECT_GT(result.accuracy, 0.34);
  for (const char* name : {"results.json", "selected.txt", "weights.svg", "quotas.svg", "state.json"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / name)) << name;
}

TEST_F(Iterations, ClustersMayBeAColumn) {
  const IterateResult result = run("embedding = \"group\"\nmethod = \"clusters\"\nquota = \"equal\"");
  EXPECT_THAT(result.sizes, ElementsAre(60, 60, 60, 60));
  ASSERT_EQ(result.rounds.size(), 1u);
  for (const int64_t quota : result.rounds.front().quotas) EXPECT_NEAR(static_cast<double>(quota), 15, 1);
}

TEST_F(Iterations, QualityPicksInsideClusters) {
  const IterateResult result = run("embedding = \"group\"\nmethod = \"clusters\"\nquality = \"right\"\npick = \"top\"");
  const std::string table = base::read_file(folder_ / "pool.csv", 1 << 20);
  double chosen = 0, all = 0;
  std::vector<int64_t> right;
  for (size_t at = table.find('\n') + 1; at < table.size(); at = table.find('\n', at) + 1) {
    size_t comma = at;
    for (int k = 0; k < 5; ++k) comma = table.find(',', comma) + 1;
    right.push_back(std::stoll(table.substr(comma)));
    all += static_cast<double>(right.back()) / 240;
  }
  for (const int64_t id : result.selected) chosen += static_cast<double>(right[static_cast<size_t>(id)]) / 61;
  EXPECT_GT(chosen, all + 0.5);
}

TEST_F(Iterations, GoesOnAfterAStop) {
  const std::string keys = "scorer = \"loss_ratio\"\nscore_on = \"fresh\"";
  const IterateResult whole = run(keys, "whole");
  base::Stop stop;
  std::thread ends([&] {
    for (int i = 0; i < 2000 && !std::filesystem::exists(folder_ / "stopped" / "state.json"); ++i) ::poll(nullptr, 0, 5);
    stop.request();
  });
  answer_to([&] { run(keys, "stopped", 1, &stop); });
  ends.join();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "stopped" / "state.json"));
  const IterateResult rest = run(keys, "stopped");
  EXPECT_EQ(rest.selected, whole.selected);
  EXPECT_EQ(rest.weights, whole.weights);
  EXPECT_EQ(rest.loss, whole.loss);
}

TEST_F(Iterations, RoundsMayLastEpochs) {
  const IterateRecipe recipe = read_iterate(file(""), {"study.round_steps=0", "study.round_epochs=1"});
  on_study_ranks(1, [&](comm::World& world) { run_iterate(world, recipe, {.out = folder_ / "epochs"}, never_); });
  std::vector<size_t> steps;
  for (const char* run : {"round-0", "round-1", "final"})
    steps.push_back(base::read_metrics(folder_ / "epochs" / run / "metrics.jsonl").size());
  EXPECT_THAT(steps, ElementsAre(2, 4, 10));
  EXPECT_THAT(answer_to([&] { read_iterate(file(""), {"study.round_epochs=1"}); }), HasSubstr("study.round_steps = 6 ends a round too"));
}

TEST_F(Iterations, OrderOfScoringChangesNothing) {
  const std::string keys = "scorer = \"reference\"\nreference = \"right\"";
  const IterateResult as_drawn = run(keys, "as-drawn");
  const IterateRecipe recipe = read_iterate(file(keys), {});
  const StudySetup setup{.out = folder_ / "reversed",
                         .scoring_order = [](std::vector<int64_t>& samples) { std::ranges::reverse(samples); }};
  IterateResult reversed;
  on_study_ranks(1, [&](comm::World& world) { reversed = run_iterate(world, recipe, setup, never_); });
  EXPECT_EQ(reversed.selected, as_drawn.selected);
  EXPECT_EQ(reversed.weights, as_drawn.weights);
}

TEST_F(Iterations, RefusesAStateOfAnotherRecipeAndDamagedOnes) {
  run("");
  EXPECT_THAT(answer_to([&] { run("floor = 0.2"); }), HasSubstr("another recipe"));
  const std::string state = base::read_file(folder_ / "out" / "state.json", 1 << 20);
  folder_.file("out/state.json", state.substr(0, state.size() / 2));
  EXPECT_THAT(answer_to([&] { run(""); }), HasSubstr("state.json"));
  std::string beyond = state;
  beyond.replace(beyond.find("\"added\":[") + 9, 1, "99999");
  folder_.file("out/state.json", beyond);
  EXPECT_THAT(answer_to([&] { run(""); }), HasSubstr("not there"));
}

TEST_F(Iterations, RefusesWhatCannotBe) {
  EXPECT_THAT(answer_to([&] { read_iterate(file("scorer = \"reference\""), {}); }), HasSubstr("study.reference"));
  EXPECT_THAT(answer_to([&] { read_iterate(file("method = \"clusters\"\nquota = \"equal\""), {"study.clusters=70"}); }),
              HasSubstr("9 of 70 clusters would get nothing"));
  EXPECT_THAT(refused_with("study.budget=241"), HasSubstr("there are 240 training samples"));
  EXPECT_THAT(refused_with("study.rounds=62"), HasSubstr("more than study.budget = 61"));
  EXPECT_THAT(refused("quality = \"x0\""), HasSubstr("Add it to data.ignore"));
  EXPECT_THAT(refused("embedding = \"topic\""), HasSubstr("study.embedding = topic"));
}

}  // namespace
}  // namespace cairn::study
