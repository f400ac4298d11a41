#include "study/lifelong.h"

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
#include "base/stop.h"
#include "kernels/aten.h"
#include "study/lifelong_select.h"
#include "study/study_table.h"

namespace cairn::study {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;
using testing::SizeIs;

const base::Random kChoices(3);

TEST(WaterFilling, FillsTheSmallFirst) {
  EXPECT_THAT(water_filling(std::vector<int64_t>{100, 3, 10, 50}, 43), ElementsAre(15, 3, 10, 15));
  EXPECT_THAT(water_filling(std::vector<int64_t>{5, 5, 5}, 7), ElementsAre(2, 2, 3));
  EXPECT_THAT(water_filling(std::vector<int64_t>{2, 1}, 9), ElementsAre(2, 1));
  EXPECT_THAT(water_filling(std::vector<int64_t>{0, 4}, 4), ElementsAre(0, 4));
}

TEST(WaterFilling, AlwaysSpendsTheBudget) {
  for (uint64_t i = 0; i < 500; ++i) {
    std::vector<int64_t> sizes;
    for (uint64_t k = 0; k <= kChoices.for_index(i).below(0, 20); ++k)
      sizes.push_back(static_cast<int64_t>(kChoices.for_index(i).below(k + 1, 40)));
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const auto budget = static_cast<int64_t>(kChoices.for_index(i).below(99, static_cast<uint64_t>(all) + 10));
    const std::vector<int64_t> taken = water_filling(sizes, budget);
    EXPECT_EQ(std::accumulate(taken.begin(), taken.end(), int64_t{0}), std::min(all, budget));
    for (size_t k = 0; k < sizes.size(); ++k) EXPECT_LE(taken[k], sizes[k]);
  }
}

TEST(ScoreEntropy, IsThatOfTheSpread) {
  EXPECT_EQ(score_entropy(std::vector<double>(20, 3.5)), 0);
  EXPECT_NEAR(score_entropy(std::vector<double>{0, 1, 0, 1}), 1, 1e-12);  // two bins
  std::vector<double> even, shifted;
  for (int i = 0; i < 1000; ++i) even.push_back(i), shifted.push_back(1e6 + 1e-3 * i);
  EXPECT_GT(score_entropy(even), 4);                               // of 22 bins
  EXPECT_NEAR(score_entropy(even), score_entropy(shifted), 0.05);  // neither place nor scale matters
}

TEST(ChooseAcross, ReturnsJustTheBudgetAndCoversTheRange) {
  std::vector<double> scores;
  for (int i = 0; i < 1000; ++i) scores.push_back(i < 900 ? 0.001 * i : i - 890.0);  // most are small
  for (const int64_t budget : {0, 1, 17, 200, 899, 901, 999, 1000, 1200}) {
    const std::vector<int64_t> chosen = choose_across(scores, budget, kChoices);
    EXPECT_THAT(chosen, SizeIs(static_cast<size_t>(std::min<int64_t>(budget, 1000))));
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::set<int64_t>(chosen.begin(), chosen.end()).size(), chosen.size());
  }
  const std::vector<int64_t> some = choose_across(scores, 100, kChoices);
  const auto high = std::count_if(some.begin(), some.end(), [](int64_t one) { return one >= 900; });
  EXPECT_GT(high, 30);                                                                  // at random: 10
  EXPECT_THAT(std::vector<int64_t>(some.begin(), some.end()), Each(testing::Lt(950)));  // the highest 5 % are set aside
  EXPECT_NE(choose_across(scores, 100, kChoices.for_index(1)), some);
}

TEST(ChooseWithin, OtherWays) {
  const std::vector<double> scores{5, 1, 4, 2, 3};
  EXPECT_THAT(choose_within("min", scores, 2, kChoices), ElementsAre(1, 3));
  EXPECT_THAT(choose_within("mid", scores, 3, kChoices), ElementsAre(2, 3, 4));
  EXPECT_THAT(choose_within("random", scores, 9, kChoices), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(choose_within("ccs", std::vector<double>(5, 1.0), 3, kChoices), SizeIs(3));
}

TEST(LeastAlike, DropsWhatResemblesAnEarlierRowOfItsCluster) {
  // Clusters: rows 0, 1, 2 (2 is 0 again, longer), and rows 3, 4 (alike).
  const std::vector<float> numbers{1, 0, 0, 1, 2, 0.01F, 1, 1, 1, 1.1F};
  const at::Tensor rows = at::empty({5, 2}, at::kFloat);
  std::copy(numbers.begin(), numbers.end(), rows.data_ptr<float>());
  const std::vector<int32_t> labels{0, 0, 0, 1, 1};
  EXPECT_THAT(least_similar(rows, labels, 2, 4), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(least_similar(rows, labels, 2, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(least_similar(rows, labels, 2, 9), ElementsAre(0, 1, 2, 3, 4));
}

TEST(NearestEarlier, OfManyRows) {
  const at::Tensor rows = at::zeros({2500, 2}, at::kFloat);
  for (int64_t i = 0; i < 2500; ++i) rows[i][i % 2] = 1;
  const std::vector<float> nearest = nearest_earlier(rows);
  EXPECT_EQ(nearest[0], -2);
  EXPECT_EQ(nearest[1], 0);
  EXPECT_EQ(nearest[2], 1);
  EXPECT_EQ(nearest[2499], 1);
}

TEST(ImageGrounding, IsHowMuchTheImageHelps) {
  const std::vector<double> without{1, 2, 0.5}, with{1, 2 - std::log(3.0), 0.5 + std::log(2.0)};
  EXPECT_THAT(image_grounding(without, with), Pointwise(DoubleNear(1e-12), {1.0, 3.0, 0.5}));
}

TEST(Elbow, IsWhereInertiaStopsFalling) {
  const std::vector<int64_t> clusters{5, 10, 15, 20, 25};
  EXPECT_EQ(elbow(clusters, std::vector<double>{100, 20, 15, 12, 10}), 1u);
  EXPECT_EQ(elbow(clusters, std::vector<double>{100, 75, 50, 10, 8}), 3u);
  EXPECT_EQ(elbow(std::vector<int64_t>{5}, std::vector<double>{3}), 0u);
}

TEST(LifelongResult, ForgettingIsTheFallBelowTheBest) {
  LifelongResult result{.skills = {"a", "b"}};
  result.steps = {{.accuracy = {0.9, NAN}}, {.accuracy = {0.5, 0.8}}, {.accuracy = {0.6, 0.9}}};
  EXPECT_DOUBLE_EQ(result.accuracy(), 0.75);
  EXPECT_NEAR(result.forgetting(), 0.15, 1e-12);
}

class Arrivals : public testing::Test {
 protected:
  Arrivals() {
    for (int i = 0; i < 3; ++i) write_study_table(folder_, fmt::format("d{}.csv", i), 120, static_cast<uint64_t>(i), 0);
    write_study_table(folder_, "test.csv", 60, 9);
  }
  base::Recipe::File file(int datasets, const std::string& study = "") const {
    std::string names;
    for (int i = 0; i < datasets; ++i) names += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", (folder_ / fmt::format("d{}.csv", i)).string());
    return {
        .text = fmt::format("[study]\nkind = \"lifelong\"\ndatasets = [{}]\nbudget = 60\npool_cap = 150\nclusters = 5\nskills = "
                            "\"group\"\n{}\n[study.vectors]\ndim = 128\n[model]\nkind = \"classifier\"\nhidden = [12, 8]\n[data]\nkind "
                            "= \"table\"\ntest_file = \"{}\"\nstandardize = false\nignore = [\"group\", \"right\", "
                            "\"wrong\"]\n[train]\nseed = 3\nsteps = 20\nglobal_batch = 10\n[optim]\nlearning_rate = 0.01\nwarmup_steps = "
                            "0\n[log]\ntensorboard = false\ntrace = false\n[eval]\nevery = 0\n",
                            names, study, (folder_ / "test.csv").string()),
        .name = "study.toml"};
  }
  LifelongResult run(const LifelongRecipe& recipe, const std::string& out, int ranks = 1, const base::Stop* stop = nullptr) const {
    LifelongResult found;
    on_study_ranks(ranks, [&](comm::World& world) {
      LifelongResult mine = run_lifelong(world, recipe, {.out = folder_ / out}, stop ? *stop : never_);
      if (world.rank() == 0) found = std::move(mine);
    });
    return found;
  }
  std::string refused(const std::string& study, const std::vector<std::string>& sets = {}) const {
    std::filesystem::remove_all(folder_ / "refused");
    return answer_to([&] { run(read_lifelong(file(2, study), sets), "refused"); });
  }

  harness::ScratchFolder folder_;
  base::Stop never_;
};

TEST_F(Arrivals, SelectsTrainsAndPrunes) {
  const LifelongResult result = run(read_lifelong(file(3), {}), "out");
  ASSERT_EQ(result.steps.size(), 3u);
  EXPECT_THAT(result.skills, ElementsAre("0", "1", "2", "3"));
  std::vector<int64_t> before, after;
  for (const LifelongStep& step : result.steps) {
    before.push_back(step.pool_before), after.push_back(step.pool_after);
    EXPECT_THAT(step.selected, SizeIs(60));
    EXPECT_THAT(std::set<int64_t>(step.selected.begin(), step.selected.end()), SizeIs(60));
    EXPECT_THAT(step.accuracy, SizeIs(4));
    int64_t spent = 0, size = 0;
    for (const ClusterChoice& one : step.clusters) spent += one.budget, size += one.size;
    EXPECT_EQ(spent, 60);
    EXPECT_EQ(size, step.pool_before);
    EXPECT_NEAR(std::accumulate(step.shares.begin(), step.shares.end(), 0.0), 1, 1e-12);
  }
  EXPECT_THAT(before, ElementsAre(120, 240, 270));
  EXPECT_THAT(after, ElementsAre(120, 150, 150));
  EXPECT_GT(result.accuracy(), 0.5);
  for (const char* name : {"results.json", "accuracy.svg", "pool.svg", "state.json", "weights-2.bin"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / name)) << name;
}

TEST_F(Arrivals, ADatasetMayBeAddedLater) {
  const LifelongResult whole = run(read_lifelong(file(3), {}), "whole");
  run(read_lifelong(file(2), {}), "grown");
  const LifelongResult grown = run(read_lifelong(file(3), {}), "grown");
  ASSERT_EQ(grown.steps.size(), 3u);
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(grown.steps[t].selected, whole.steps[t].selected) << t;
    EXPECT_EQ(grown.steps[t].pool_after, whole.steps[t].pool_after) << t;
    EXPECT_EQ(grown.steps[t].accuracy, whole.steps[t].accuracy) << t;
  }
  EXPECT_EQ(grown.steps.back().pool, whole.steps.back().pool);  // of earlier ones the size is kept
}

TEST_F(Arrivals, GoesOnAfterAStop) {
  const LifelongRecipe recipe = read_lifelong(file(3), {});
  const LifelongResult whole = run(recipe, "whole");
  base::Stop stop;
  std::thread ends([&] {
    for (int i = 0; i < 2000 && !std::filesystem::exists(folder_ / "stopped" / "state.json"); ++i) ::poll(nullptr, 0, 5);
    stop.request();
  });
  answer_to([&] { run(recipe, "stopped", 1, &stop); });
  ends.join();
  const LifelongResult rest = run(recipe, "stopped");
  EXPECT_EQ(rest.steps.back().selected, whole.steps.back().selected);
  EXPECT_EQ(rest.steps.back().accuracy, whole.steps.back().accuracy);
}

TEST_F(Arrivals, OtherMethodsChooseAtRandom) {
  const LifelongResult replay = run(read_lifelong(file(2, "method = \"replay\""), {}), "replay");
  EXPECT_EQ(replay.steps[1].pool_before, 240);
  const LifelongResult turn = run(read_lifelong(file(2, "method = \"sequential\""), {}), "turn");
  EXPECT_EQ(turn.steps[1].pool_before, 120);
  EXPECT_THAT(turn.steps[1].selected, Each(testing::Ge(120)));
}

TEST_F(Arrivals, EveryKindOfVectorAndTheElbow) {
  for (const std::string vectors : {"kind=hidden", "type=sign", "type=zero_order", "layer=last", "layer=all"}) {
    const LifelongRecipe recipe = read_lifelong(file(2, "scores = [\"grand\", \"el2n\", \"ig\"]\nimage = [\"x0\", \"x2\"]"),
                                                {"study.vectors." + vectors, "study.clusters=0", "study.vectors.directions=4"});
    EXPECT_THAT(recipe.image, ElementsAre(0, 2));
    EXPECT_THAT(run(recipe, vectors).steps[1].selected, SizeIs(60)) << vectors;
  }
}

TEST_F(Arrivals, RefusesOtherData) {
  run(read_lifelong(file(2), {}), "out");
  EXPECT_THAT(answer_to([&] { run(read_lifelong(file(2, "within = \"min\""), {}), "out"); }), HasSubstr("another recipe"));
  write_study_table(folder_, "d0.csv", 120, 77);
  EXPECT_THAT(answer_to([&] { run(read_lifelong(file(2), {}), "out"); }), HasSubstr("of other data"));
  write_study_table(folder_, "d0.csv", 120, 0);
  EXPECT_EQ(answer_to([&] { run(read_lifelong(file(2), {}), "out"); }), "accepted");
  folder_.file("out/state.json", "{\"identity\": 3");
  EXPECT_THAT(answer_to([&] { run(read_lifelong(file(2), {}), "out"); }), HasSubstr("state.json"));
}

TEST_F(Arrivals, RefusesWhatCannotBe) {
  EXPECT_THAT(refused("", {"study.budget=151"}), HasSubstr("more than study.pool_cap = 150"));
  EXPECT_THAT(refused("", {"study.budget=121"}), HasSubstr("the pool has 120 samples"));
  EXPECT_THAT(refused("", {"study.clusters=61"}), HasSubstr("more than study.budget = 60"));
  EXPECT_THAT(refused("", {"study.vectors.dim=200"}), HasSubstr("multiple of 128"));
  EXPECT_THAT(refused("", {"study.vectors.layer=7"}), HasSubstr("a layer from 0 to 2"));
  EXPECT_THAT(refused("scores = [\"ig\"]"), HasSubstr("needs an image input"));
  EXPECT_THAT(refused("scores = [\"ig\"]\nimage = [\"group\"]"), HasSubstr("group is no feature"));
  EXPECT_THAT(refused("scores = [\"beauty\"]"), HasSubstr("unknown score beauty"));
  EXPECT_THAT(refused("scores = []"), HasSubstr("study.scores: empty"));
  EXPECT_THAT(refused("", {"study.skills=x0"}), HasSubstr("study.skills = x0"));
  const std::string d0 = (folder_ / "d0.csv").string();
  EXPECT_THAT(refused("", {"study.datasets=['" + d0 + "', '" + d0 + "']"}), HasSubstr("named twice"));
  EXPECT_THAT(refused("", {"study.datasets=['" + d0 + "']"}), HasSubstr("at least two"));
}

}  // namespace
}  // namespace cairn::study
