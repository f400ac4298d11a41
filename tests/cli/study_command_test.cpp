// `cairn study hdee` and what is done with its ensembles, run as a user would run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/program.h"
#include "study/hdee_recipe.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

class StudyCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    std::string tales, sums;
    for (int i = 0; i < 400; ++i) {
      tales += "the dog saw " + std::string(i % 3 == 0 ? "a cat" : "a hat") + ".\n";
      sums += std::to_string(i) + "+" + std::to_string(i % 7) + "=" + std::to_string(i + i % 7) + "\n";
    }
    scratch->file("tales.txt", tales);
    scratch->file("sums.txt", sums);
    scratch->file("study.toml", study::hdee_file("[study.seed]\nsteps = 4\n").text);
    ran = cairn(*scratch, {"study", "hdee", "study.toml", "--out", "out"});
  }
  static void TearDownTestSuite() { scratch.reset(); }

  static std::unique_ptr<harness::ScratchFolder> scratch;
  static Outcome ran;
};
std::unique_ptr<harness::ScratchFolder> StudyCommand::scratch;
Outcome StudyCommand::ran;

TEST_F(StudyCommand, TrainsEveryExpertOnceAndTellsWhatCameOfIt) {
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("parity, mode steps:"));
  const base::Json results = base::parse_json(scratch->text_of("out/results.json"));
  ASSERT_EQ(results["experts"].size(), 4u);  // two of each mode
  for (const base::Json& expert : results["experts"]) {
    EXPECT_EQ(expert["bytes_sent"], 0);
    EXPECT_EQ(expert["tokens"].get<int64_t>(), expert["steps"][0].get<int64_t>() * 4 * 16);
    EXPECT_TRUE(expert["loss_before"].is_number());  // of its seed
  }
  EXPECT_NEAR(results["modes"][0]["flops"].get<double>(), results["budget_flops"].get<double>(), 1);
  for (const char* domain : {"tales", "sums", "mixture"}) EXPECT_TRUE(results["modes"][1]["domains"].contains(domain)) << domain;
  EXPECT_THAT(scratch->text_of("out/report.html"), HasSubstr("<svg"));
}

TEST_F(StudyCommand, GoesOnWhereItWasAndGivesTheSame) {
  const std::string before = scratch->text_of("out/results.json");
  const Outcome again = cairn(*scratch, {"study", "hdee", "study.toml", "--out", "out", "--json"});
  ASSERT_EQ(again.code, 0) << again.output;
  const base::Json a = base::parse_json(before), b = base::parse_json(scratch->text_of("out/results.json"));
  EXPECT_EQ(a["modes"], b["modes"]);
  EXPECT_EQ(again.output.find("process"), std::string::npos);  // nobody was trained again
  const Outcome other = cairn(*scratch, {"study", "hdee", "study.toml", "--out", "out", "--set", "optim.learning_rate=0.1"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.output, HasSubstr("a study with other training keys lies there"));
}

TEST_F(StudyCommand, LeavesEnsemblesThatGenerateAndEvalTake) {
  const Outcome text = cairn(*scratch, {"generate", "out/ensembles/steps", "--ids", "116,104", "--tokens", "8", "--greedy", "--json"});
  ASSERT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("\"log_probabilities\""));
  const auto loss = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"eval", model, "--data", "tales.txt", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return base::parse_json(outcome.output.substr(outcome.output.find("{\"model\"")))["results"][0]["loss"].get<double>();
  };
  const double expert = loss("out/experts/easy-m-6/1-tales", {}), other = loss("out/experts/hard-m-10/1-sums", {});
  const double knowing = loss("out/ensembles/steps", {"--domain", "tales"});
  EXPECT_LT(knowing, other);
  EXPECT_NEAR(knowing, expert, 0.2);
  const Outcome wrong = cairn(*scratch, {"eval", "out/ensembles/steps", "--data", "tales.txt", "--domain", "tale"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.output, HasSubstr("did you mean \"tales\""));
  EXPECT_THAT(cairn(*scratch, {"eval", "out/seeds/m", "--data", "tales.txt", "--domain", "tales"}).output, HasSubstr("is one model"));
}

TEST_F(StudyCommand, WarnsOfAMissingExpertAndGoesOnWithoutIt) {
  std::filesystem::copy(scratch->path() / "out", scratch->path() / "moved", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(scratch->path() / "moved/experts/hard-m-10");
  const Outcome left = cairn(*scratch, {"eval", "moved/ensembles/steps", "--data", "tales.txt", "--json"});
  ASSERT_EQ(left.code, 0) << left.output;
  EXPECT_THAT(left.output, HasSubstr("expert hard is missing"));
  const Outcome alone = cairn(*scratch, {"eval", "out/experts/easy-m-6/1-tales", "--data", "tales.txt", "--json"});
  const auto results = [](const std::string& output) { return base::parse_json(output.substr(output.find("{\"model\"")))["results"]; };
  EXPECT_NEAR(results(left.output)[0]["loss"].get<double>(), results(alone.output)[0]["loss"].get<double>(), 1e-5);
}

TEST_F(StudyCommand, RefusesAnExpertWithAnotherTokenizer) {
  std::vector<std::string> arguments = tiny({"train", "--out", "stranger", "--set", "train.steps=1"});
  ASSERT_EQ(cairn(*scratch, arguments).code, 0);
  std::string text = scratch->text_of("out/ensembles/steps/ensemble.json");
  const std::string from = "../../experts/hard-m-10/1-sums";
  text.replace(text.find(from), from.size(), "../stranger");
  std::filesystem::create_directory(scratch->path() / "odd");
  scratch->file("odd/ensemble.json", text);
  const Outcome outcome = cairn(*scratch, {"generate", "odd", "--ids", "1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("expert hard has another tokenizer"));
}

TEST_F(StudyCommand, FindsOutWhatIsHardByItself) {
  const Outcome outcome = cairn(*scratch, {"study", "hdee", "study.toml", "--out", "auto", "--set", "study.difficulty=loss", "--set",
                                           "study.probe_steps=2", "--set", "study.compare=[]", "--set", "study.seed.steps=0"});
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const base::Json results = base::parse_json(scratch->text_of("auto/results.json"));
  const bool sums_harder = results["difficulty"]["hard"] > results["difficulty"]["easy"];
  for (const base::Json& expert : results["experts"])
    EXPECT_EQ(expert["steps"][0], (expert["line"] == "hard") == sums_harder ? 10 : 6) << expert["id"];
}

TEST_F(StudyCommand, ShowsThePlanAndTrainsNobodyInADryRun) {
  const Outcome outcome = cairn(*scratch, {"study", "hdee", "study.toml", "--out", "dry", "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("1.0000 of the budget"));
  EXPECT_FALSE(std::filesystem::exists(scratch->path() / "dry/experts"));
  const Outcome off = cairn(*scratch, {"study", "hdee", "study.toml", "--out", "dry", "--set", "study.line.hard.steps=12"});
  EXPECT_EQ(off.code, 2);
  EXPECT_THAT(off.output, HasSubstr("more than the budget"));
}

}  // namespace
}  // namespace cairn::cli
