#include "evaluate/ensemble/ensemble_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "evaluate/refused.h"
#include "harness/scratch_folder.h"

namespace cairn::evaluate {
namespace {

using testing::HasSubstr;

EnsembleFile example(const std::filesystem::path& folder) {
  EnsembleFile file;
  file.experts = {{"easy", (folder / "experts/easy").string(), {"tales"}},
                  {"hard", (folder / "experts/hard").string(), {"sums", "proofs"}}};
  file.prior = "cached";
  file.priors = {{"tales", {0.9, 0.1}}, {"sums", {0, 1}}};
  file.top_k = 1;
  file.tokenizer = 0x0123456789abcdef;
  return file;
}

TEST(EnsembleFile, ComesBackAsItWasWrittenAlsoFromAnotherPlace) {
  harness::ScratchFolder scratch;
  write_ensemble(scratch / "a/ensembles/x", example(scratch / "a"));
  EXPECT_TRUE(is_ensemble(scratch / "a/ensembles/x"));
  EXPECT_TRUE(is_ensemble(scratch / "a/ensembles/x/ensemble.json"));
  EXPECT_FALSE(is_ensemble(scratch / "a/ensembles"));
  EXPECT_EQ(read_ensemble(scratch / "a/ensembles/x"), example(scratch / "a"));
  std::filesystem::rename(scratch / "a", scratch / "b");
  EXPECT_EQ(read_ensemble(scratch / "b/ensembles/x/ensemble.json"), example(scratch / "b"));
}

TEST(EnsembleFile, WeighsByTheDomainThatIsNamed) {
  EnsembleFile file = example("/");
  EXPECT_EQ(file.mix("tales").prior, (std::vector<double>{0.9, 0.1}));
  EXPECT_EQ(file.mix("").prior, (std::vector<double>{1, 1}));
  EXPECT_THAT(refused([&] { file.mix("sum"); }), HasSubstr("did you mean \"sums\""));
  file.prior = "simple_average";
  EXPECT_TRUE(file.mix("tales").average);
  EXPECT_EQ(file.mix("tales").prior, (std::vector<double>{1, 1}));
}

TEST(EnsembleFile, SharesTheWeightOfAnExpertThatIsMissing) {
  EnsembleFile file = example("/");
  leave_out(file, 1);
  EXPECT_EQ(file.experts.size(), 1u);
  EXPECT_EQ(file.priors["tales"], (std::vector<double>{0.9}));
  EXPECT_EQ(file.priors["sums"], (std::vector<double>{1}));  // nothing was left
}

TEST(EnsembleFile, RefusesWhatIsNone) {
  harness::ScratchFolder scratch;
  write_ensemble(scratch / "x", example(scratch.path()));
  const std::string good = scratch.text_of("x/ensemble.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    scratch.file("x/ensemble.json", text);
    return refused([&] { read_ensemble(scratch / "x"); });
  };
  EXPECT_THAT(with("{", "["), HasSubstr("not JSON"));
  EXPECT_THAT(with("cairn ensemble 1", "cairn ensemble 2"), HasSubstr("reads \"cairn ensemble 1\""));
  EXPECT_THAT(with("\"top_k\": 1", "\"top_k\": 3"), HasSubstr("top_k = 3: there are 2 experts"));
  EXPECT_THAT(with("\"refresh\": 32", "\"refresh\": 0"), HasSubstr("\"refresh\" must be an integer between 1"));
  EXPECT_THAT(with("\"name\": \"hard\"", "\"name\": \"easy\""), HasSubstr("two experts are called \"easy\""));
  EXPECT_THAT(with("\"prior\": \"cached\"", "\"prior\": \"cashed\""), HasSubstr("did you mean \"cached\""));
  EXPECT_THAT(with("0.9,", "0.9, 3,"), HasSubstr("domain \"tales\": a prior of 3 experts for an ensemble of 2"));
  EXPECT_THAT(with("0.9,", "\"a\","), HasSubstr("must be a list of numbers"));
  EXPECT_THAT(with("0123456789abcdef", "0123456789abcdeg"), HasSubstr("\"tokenizer\" must be a hash"));
  EXPECT_THAT(with("\"experts\": [", "\"experts\": [7,"), HasSubstr("expert 0: not an object"));
}

}  // namespace
}  // namespace cairn::evaluate
