#include "study/value.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/files.h"
#include "base/stop.h"
#include "data/selection/subset_file.h"
#include "study/study_table.h"

namespace cairn::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A study of a table of 12 training rows, or of what `more` says.
class ValueStudies : public testing::Test {
 protected:
  ValueStudies() {
    write_study_table(folder_, "train.csv", 12, 1, 4);
    write_study_table(folder_, "test.csv", 80, 2);
  }
  base::Recipe::File file(const std::string& study, const std::string& data = "") const {
    return {.text = fmt::format("[study]\nkind = \"value\"\n{}\n[model]\nkind = \"classifier\"\nhidden = [6]\n[data]\nkind = \"table\"\n"
                                "path = \"{}\"\ntest_file = \"{}\"\nignore = [\"group\", \"right\", \"wrong\"]\n{}\n[train]\nseed = 3\n",
                                study, (folder_ / "train.csv").string(), (folder_ / "test.csv").string(), data),
            .name = "study.toml"};
  }
  ValueResult run(const std::string& study, const std::string& out = "out", int processes = 1, const std::string& data = "") const {
    return run_value(read_value(file(study, data), {}), {.out = folder_ / out, .processes = processes}, quiet_, never_);
  }
  std::string refused(const std::string& study, const std::string& data = "") const {
    return answer_to([&] { run(study, "refused", 1, data); });
  }

  harness::ScratchFolder folder_;
  mutable base::Log quiet_ = base::Log::quiet();
  base::Stop never_;
};

TEST_F(ValueStudies, PermutationsAgreeWithTheExactValues) {
  const std::string common = "coverage = \"train_anyway\"\nplayers = \"group\"\ncurves = false\n";
  const ValueResult exact = run(common + "method = \"exact\"", "exact");
  EXPECT_THAT(exact.names, ElementsAre("0", "1", "2", "3"));
  EXPECT_NEAR(std::accumulate(exact.values.begin(), exact.values.end(), 0.0), exact.full - exact.empty, 1e-12);
  EXPECT_EQ(exact.trainings, 15);
  const ValueResult drawn = run(common + "tolerance = 0\nmax_permutations = 600\nerror = 1e-9", "tmc");
  EXPECT_EQ(drawn.permutations, 600);
  EXPECT_EQ(drawn.position, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(drawn.values[i], exact.values[i], 5 * drawn.errors[i] + 1e-9) << i;
}

TEST_F(ValueStudies, LeaveOneOutIsTheLastMarginal) {
  const ValueResult loo = run("method = \"loo\"\nmetric = \"neg_loss\"\ncurves = false");
  EXPECT_EQ(loo.trainings, 13);
  ASSERT_EQ(loo.values.size(), 12u);
  EXPECT_GT(*std::max_element(loo.values.begin(), loo.values.end()), *std::min_element(loo.values.begin(), loo.values.end()));
}

TEST_F(ValueStudies, ProcessesAndARestartChangeNothing) {
  const std::string keys = "max_permutations = 130\nerror = 1e-9\nsave_every = 50\nmetric = \"neg_loss\"\ncurves = false";
  const ValueResult one = run(keys, "one");
  EXPECT_EQ(run(keys, "three", 3).values, one.values);
  run("max_permutations = 60\nerror = 1e-9\nsave_every = 50\nmetric = \"neg_loss\"\ncurves = false", "again", 2);
  const ValueResult more = run(keys, "again");  // goes on after 60: the end of a study may change
  EXPECT_EQ(more.values, one.values);
  EXPECT_EQ(more.permutations, 130);
}

TEST_F(ValueStudies, GradientsValueSourcesAndRowsAlike) {
  const std::string keys = "method = \"g\"\nlearner = \"recipe\"\nmax_permutations = 64\nerror = 1e-9\nblock = 16\ncurves = false\n";
  const ValueResult rows = run(keys, "rows");
  EXPECT_EQ(rows.values.size(), 12u);
  EXPECT_GT(rows.learning_rate, 0);
  const ValueResult fixed = run(keys + "learning_rate = 0.05\nplayers = \"group\"", "groups", 2);
  EXPECT_EQ(fixed.values.size(), 4u);
  EXPECT_EQ(fixed.learning_rate, 0.05);
}

TEST_F(ValueStudies, TrainsTheRecipeOnSubsets) {
  const base::Recipe::File recipe{
      .text = file("learner = \"recipe\"\nmethod = \"exact\"\nplayers = \"group\"\nseeds = 2\ncurves = false").text +
              "steps = 8\nglobal_batch = 4\n[log]\ntensorboard = false\n",
      .name = "study.toml"};
  const ValueResult one = run_value(read_value(recipe, {}), {.out = folder_ / "a"}, quiet_, never_);
  const ValueResult two = run_value(read_value(recipe, {}), {.out = folder_ / "b", .processes = 2}, quiet_, never_);
  EXPECT_EQ(one.values, two.values);
  EXPECT_NEAR(std::accumulate(one.values.begin(), one.values.end(), 0.0), one.full - one.empty, 1e-9);
}

TEST_F(ValueStudies, DrawsRemovalDetectionAndAcquisition) {
  write_study_table(folder_, "more.csv", 30, 5);
  const ValueResult result = run(
      fmt::format("max_permutations = 30\nvalidation = 40\ncorrupted = \"wrong\"\ncandidates = \"{}\"", (folder_ / "more.csv").string()));
  std::map<std::string, int> plots;
  for (const ValueCurve& one : result.curves) ++plots[one.plot];
  EXPECT_EQ(plots["removal"], 4);  // highest, lowest, random, leave-one-out
  EXPECT_EQ(plots["detection"], 3);
  EXPECT_EQ(plots["acquisition"], 2);
  for (const ValueCurve& one : result.curves)
    if (one.plot == "detection") {
      EXPECT_EQ(one.points.front(), std::make_pair(0.0, 0.0));
      EXPECT_EQ(one.points.back(), std::make_pair(1.0, 1.0));
    }
  for (const char* name : {"values.csv", "results.json", "removal.svg", "detection.svg", "acquisition.svg", "convergence.svg"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / name) || std::string(name) == "convergence.svg") << name;
  EXPECT_THAT(to_tables(result), HasSubstr("removal, highest first"));
}

TEST_F(ValueStudies, ValuesSourcesOfTextAndWritesAColumn) {
  std::string words, noise;
  for (int i = 0; i < 120; ++i) words += "the cat sat on the mat. ", noise += fmt::format("q{}x{} ", i * 7919 % 97, i * 104729 % 89);
  folder_.file("words.txt", words), folder_.file("noise.txt", noise), folder_.file("measured.txt", words.substr(0, 600));
  const base::Recipe::File recipe{
      .text =
          fmt::format("[study]\nkind = \"value\"\nmethod = \"exact\"\nplayers = \"source\"\nlearner = \"recipe\"\nmetric = \"neg_loss\"\n"
                      "curves = false\nvalidation_source = \"{}\"\n[model]\nlayers = 1\nembed = 16\nheads = 2\nkv_heads = 2\nmlp = 24\n"
                      "[data]\nsources = [\"{}\", \"{}\"]\ntokenizer = \"bytes\"\nlength = 32\n[train]\nsteps = 20\nglobal_batch = 4\n"
                      "[optim]\nlearning_rate = 0.01\nwarmup_steps = 2\n[log]\ntensorboard = false\nsamples = 0\n",
                      (folder_ / "measured.txt").string(), (folder_ / "words.txt").string(), (folder_ / "noise.txt").string()),
      .name = "study.toml"};
  const ValueResult result = run_value(read_value(recipe, {}), {.out = folder_ / "text"}, quiet_, never_);
  ASSERT_EQ(result.values.size(), 2u);
  EXPECT_GT(result.values[0], result.values[1]);
  const data::ScoreColumn column = data::read_column((folder_ / "text" / "values.scores").string());
  EXPECT_EQ(column.name, "value");
  ASSERT_GE(column.scores.size(), 2u);
  EXPECT_FLOAT_EQ(column.scores.front(), static_cast<float>(result.values[0]));
  EXPECT_FLOAT_EQ(column.scores.back(), static_cast<float>(result.values[1]));
}

TEST_F(ValueStudies, RefusesWhatCannotBe) {
  EXPECT_THAT(refused("method = \"exact\"\nmetric = \"auc\""), HasSubstr("study.metric = auc"));
  write_study_table(folder_, "train.csv", 40, 1);
  EXPECT_THAT(refused("method = \"exact\""), HasSubstr("40 players need 2^40 trainings"));
  EXPECT_THAT(refused("players = \"topic\""), HasSubstr("study.players = topic"));
  EXPECT_THAT(refused("corrupted = \"x0\""), HasSubstr("Add it to data.ignore"));
  EXPECT_THAT(refused("players = \"source\""), HasSubstr("one player only"));
  EXPECT_THAT(refused("validation = 81"), HasSubstr("80 samples are held out"));
  EXPECT_THAT(refused("validation_source = \"x.txt\""), HasSubstr("is for texts"));
  EXPECT_THAT(refused("budget_hours = 1e-9"), HasSubstr("study.budget_hours"));
  const ValueRecipe normed = read_value(file("method = \"g\"\nlearner = \"recipe\""), {"model.batch_norm=true"});
  EXPECT_THAT(answer_to([&] { run_value(normed, {.out = folder_ / "refused"}, quiet_, never_); }), HasSubstr("model.batch_norm"));
  EXPECT_THAT(refused("patience = -1"), HasSubstr("study.patience"));
  EXPECT_THAT(refused("permutations = 3"), HasSubstr("study.permutations"));
}

TEST_F(ValueStudies, RefusesResultsOfAnotherRecipe) {
  run("max_permutations = 5\ncurves = false");
  EXPECT_THAT(answer_to([&] { run("max_permutations = 5\ncurves = false\nridge = 2.0"); }), HasSubstr("another recipe"));
  EXPECT_EQ(answer_to([&] { run("max_permutations = 6\ncurves = false"); }), "accepted");
}

}  // namespace
}  // namespace cairn::study
