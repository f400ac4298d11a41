#include "study/coded_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_of.h"
#include "train/options.h"

namespace cairn::study {
namespace {

using testing::HasSubstr;

CodedRecipe read(const std::string& study, const std::vector<std::string>& sets = {}) {
  return read_coded(
      {.text = "[study]\n" + study + "\n[study.stragglers]\nenter = 0.1\n[train]\nseed = 5\nsteps = 7\n", .name = "coded.toml"}, sets);
}

std::string refusal(const std::string& study, const std::vector<std::string>& sets = {}) {
  return base::message_of([&] { read(study, sets); });
}

TEST(CodedOptions, EveryModelHasItsOwnSeedOrKeys) {
  const CodedRecipe plain = read("streams = 3", {"train.steps=9", "study.workers=4"});
  EXPECT_EQ(plain.study.workers, 4);
  EXPECT_EQ(plain.stragglers.enter, 0.1);
  ASSERT_EQ(plain.streams.size(), 3u);
  base::Recipe last = plain.streams[2];
  const train::TrainOptions train = last.read(train::train_schema());
  EXPECT_EQ(train.seed, 7);
  EXPECT_EQ(train.steps, 9);
  const CodedRecipe varied = read("streams = 2\nvary = [\"optim.learning_rate=0.5 train.seed=1\", \"train.seed=2\"]");
  base::Recipe first = varied.streams[0];
  EXPECT_EQ(first.read(train::train_schema()).seed, 1);
  EXPECT_TRUE(first.has("optim.learning_rate"));
}

TEST(CodedOptions, RefusesTooFewModelsForTheDelay) {
  EXPECT_THAT(refusal("params = \"given\"\nb = 2\nw = 3\nlambda = 6\nstreams = 3"),
              HasSubstr("study.streams = 3: msgc(2,3,6) delays gradients by 3 rounds: train at least 4 models, or use study.scheme = gc"));
  EXPECT_THAT(refusal("streams = 1"), HasSubstr("train 2 models or more, or use study.scheme = gc"));
  EXPECT_EQ(read("streams = 1\nscheme = \"gc\"").streams.size(), 1u);
  EXPECT_THAT(refusal("streams = 2\nvary = [\"train.seed=1\"]"), HasSubstr("study.vary: 1 texts for 2 streams"));
}

TEST(CodedOptions, RefusesWhatIsNoKey) {
  EXPECT_THAT(refusal("strems = 4"), HasSubstr("strems"));
  EXPECT_THAT(refusal("scheme = \"mds\""), HasSubstr("study.scheme"));
  EXPECT_THAT(refusal("", {"mesh.tp=2"}), HasSubstr("mesh.tp"));
}

}  // namespace
}  // namespace cairn::study
