// `cairn eval`, run as a user would run it.
#include <algorithm>
#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/program.h"

namespace cairn::cli {
namespace {

class EvalCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    std::vector<std::string> arguments = tiny({"train", "--out", "run", "--set", "train.steps=3"});
    std::replace(arguments.begin(), arguments.end(), std::string("data.length=16"), std::string("data.length=64"));
    ASSERT_EQ(cairn(*scratch, arguments).code, 0);
    scratch->file(
        "a.txt",
        "One day a dog went out to play.<|endoftext|>It found a ball, and then it was happy for all of the long and sunny afternoon.");
    scratch->file("b.jsonl", "{\"text\": \"Once there was a cat.\"}\n{\"text\": \"It slept.\"}\n");
    scratch->file("choices.jsonl",
                  "{\"question\": \"The dog\", \"choices\": [\"ran\", \"xqzt\"], \"answer\": 0}\n{\"ctx\": \"A\", \"endings\": [\"b\", "
                  "\"cat\"], \"label\": 1}\n");
    scratch->file("answers.jsonl", "{\"prompt\": \"One day\", \"answer\": \"x\"}\n");
  }
  static void TearDownTestSuite() { scratch.reset(); }

  // The object that --json prints; progress and the like go to standard error, which is not looked at.
  static base::Json results(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"eval", "run", "--json"});
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return base::parse_json(outcome.output.substr(outcome.output.find("{\"model\"")));
  }

  static std::string refused(std::vector<std::string> arguments) {
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};
std::unique_ptr<harness::ScratchFolder> EvalCommand::scratch;

TEST_F(EvalCommand, MeasuresTextsOfAnyKindTogether) {
  const base::Json both = results({"--data", "a.txt", "b.jsonl", "--items", "items.jsonl"})["results"][0];
  const std::string text = scratch->text_of("a.txt");
  const size_t bytes = text.size() - std::string("<|endoftext|>").size() + std::string("Once there was a cat.It slept.").size();
  EXPECT_EQ(both["documents"], 4);
  EXPECT_EQ(both["bytes"], bytes);
  EXPECT_NEAR(both["perplexity"].get<double>(), std::exp(both["loss"].get<double>()), 1e-6);
  EXPECT_EQ(both["window"], 64);
  EXPECT_EQ(both["stride"], 64);
  double loss = 0, tokens = 0;
  std::istringstream items(scratch->text_of("items.jsonl"));
  int64_t lines = 0;
  for (std::string line; std::getline(items, line); ++lines) {
    const base::Json one = base::parse_json(line);
    loss += one["loss"].get<double>();
    tokens += one["tokens"].get<double>();
  }
  EXPECT_EQ(lines, 4);
  EXPECT_NEAR(both["loss"].get<double>(), loss / tokens, 1e-9);
  EXPECT_NEAR(both["bits_per_byte"].get<double>(), loss / std::log(2.0) / static_cast<double>(bytes), 1e-9);
}

TEST_F(EvalCommand, IsTheSameForAnyBatch) {
  const std::vector<std::string> all{"--data",        "a.txt",  "--task",      "multiple-choice",
                                     "choices.jsonl", "--task", "exact-match", "answers.jsonl"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), all.begin(), all.end());
    return results(more)["results"];
  };
  const base::Json one = with({"--batch", "1"}), many = with({"--batch", "5", "--limit", "2"});
  ASSERT_EQ(one.size(), 3u);
  EXPECT_NEAR(one[0]["loss"].get<double>(), many[0]["loss"].get<double>(), 1e-6);
  EXPECT_EQ(one[1], many[1]);
  EXPECT_EQ(one[2], many[2]);
  EXPECT_EQ(one[1]["items"], 2);
  EXPECT_TRUE(one[1].contains("acc_norm_stderr"));
}

TEST_F(EvalCommand, ShowsATableAndHowItWasMeasured) {
  scratch->file("prefix.txt", "Say it.\n");
  const Outcome outcome = cairn(*scratch, {"eval", "run", "--data", "a.txt", "--window", "32", "--stride", "16", "--prefix", "prefix.txt",
                                           "--task", "exact-match", "answers.jsonl", "--tokens", "4", "--stop", "."});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* words :
       {"bits per byte", "perplexity", "exact_match_norm", "standard error", "windows of 32 tokens, each 16 tokens after the one before",
        "is judged after <|endoftext|>", "without case, punctuation and articles"})
    EXPECT_NE(outcome.output.find(words), std::string::npos) << words << "\n" << outcome.output;
}

TEST_F(EvalCommand, RefusesWhatItCannotMeasure) {
  EXPECT_NE(refused({"eval", "run"}).find("nothing to measure: give --data PATHS"), std::string::npos);
  EXPECT_NE(refused({"eval", "run", "--task", "multiple-chioce", "choices.jsonl"}).find("did you mean \"multiple-choice\"?"),
            std::string::npos);
  EXPECT_NE(refused({"eval", "run", "--task", "exact-match", "choices.jsonl"}).find("choices.jsonl:2: no field \"prompt\""),
            std::string::npos);
  EXPECT_NE(refused({"eval", "run", "--data", "a.txt", "--stop", ""}).find("--stop: an empty text"), std::string::npos);
  EXPECT_NE(refused({"eval", "run", "--data", "a.txt", "--set", "data.kind=preference"}).find("perplexity is of text"), std::string::npos);
}

}  // namespace
}  // namespace cairn::cli
