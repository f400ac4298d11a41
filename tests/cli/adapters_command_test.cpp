// Adapters that are trained, exported, merged, and served together, as a user would do it.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/program.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

class AdaptersCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    std::vector<std::string> base = tiny({"train", "--out", "base", "--set", "train.steps=3"});
    std::replace(base.begin(), base.end(), std::string("model.layers=1"), std::string("model.layers=2"));
    std::replace(base.begin(), base.end(), std::string("data.length=16"), std::string("data.length=64"));
    must(base);
    adapter("lora", {"model.adapter.rank=2"});
    adapter("mos", {"model.adapter.kind=mos", "model.adapter.rank=3", "model.adapter.equivalent_rank=2", "model.adapter.private_rank=1",
                    "model.adapter.shards_per_vector=2"});
  }
  static void TearDownTestSuite() { scratch.reset(); }

  static Outcome must(const std::vector<std::string>& arguments) {
    Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome;
  }

  // Trains an adapter of the base model, exports it as NAME-adapter and merges it into NAME-merged.
  static void adapter(const std::string& name, const std::vector<std::string>& keys) {
    std::vector<std::string> train{"train", "--out", name};
    std::vector<std::string> sets{"model.from=base",      "data.length=32",          "data.stories_bytes=20000", "data.stories_seed=7",
                                  "train.steps=6",        "eval.samples=4",          "train.global_batch=5",     "log.samples=0",
                                  "optim.warmup_steps=0", "optim.learning_rate=0.05"};
    sets.insert(sets.end(), keys.begin(), keys.end());
    for (const std::string& set : sets) train.insert(train.end(), {"--set", set});
    must(train);
    must({"snapshot", "export", name, "--adapter", "--out", name + "-adapter"});
    must({"snapshot", "merge", "base", "--adapter", name + "-adapter", "--out", name + "-merged"});
  }

  static std::vector<base::Json> texts(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "generate");
    for (const char* one : {"--json", "--greedy", "--tokens", "8", "--ignore-end"}) arguments.emplace_back(one);
    const Outcome outcome = must(arguments);
    std::vector<base::Json> found;
    for (size_t at = 0; (at = outcome.output.find("{\"prompt\"", at)) != std::string::npos; ++at)
      found.push_back(base::parse_json(outcome.output.substr(at, outcome.output.find('\n', at) - at)));
    return found;
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};
std::unique_ptr<harness::ScratchFolder> AdaptersCommand::scratch;

TEST_F(AdaptersCommand, LoraPoolsAndNoneAnswerInOneFileAsTheMergedModelsDo) {
  scratch->file("prompts.jsonl", R"({"prompt": "One day", "adapter": "pools"}
{"prompt": "One day"}
{"prompt": "A child went", "adapter": "low"}
{"prompt": "One day", "adapter": "low"}
{"prompt": "A child went", "adapter": "pools"}
)");
  const std::vector<base::Json> found =
      texts({"base", "--adapter", "low=lora-adapter", "--adapter", "pools=mos-adapter", "--prompts", "prompts.jsonl"});
  const std::vector<std::string> alone{"mos-merged", "base", "lora-merged", "lora-merged", "mos-merged"};
  ASSERT_EQ(found.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    // By its ids: texts begin with a mark in a run's folder, and in an exported one as its tokenizer says.
    const std::string ids = found[i]["prompt_ids"].dump();
    const base::Json one = texts({alone[i], "--ids", ids.substr(1, ids.size() - 2)}).at(0);
    EXPECT_EQ(found[i]["ids"], one["ids"]) << i;
    ASSERT_EQ(found[i]["log_probabilities"].size(), one["log_probabilities"].size());
    for (size_t k = 0; k < one["log_probabilities"].size(); ++k)
      EXPECT_NEAR(found[i]["log_probabilities"][k].get<double>(), one["log_probabilities"][k].get<double>(), 1e-4) << i;
  }
  EXPECT_NE(found[0]["log_probabilities"], found[1]["log_probabilities"]);
  EXPECT_NE(found[3]["log_probabilities"], found[1]["log_probabilities"]);
  EXPECT_NE(found[3]["log_probabilities"], found[0]["log_probabilities"]);
}

TEST_F(AdaptersCommand, ServingRefusesNamesThatItDoesNotKnow) {
  scratch->file("unknown.jsonl", "{\"prompt\": \"a\", \"adapter\": \"lo\"}\n");
  const Outcome unknown = cairn(*scratch, {"generate", "base", "--adapter", "low=lora-adapter", "--prompts", "unknown.jsonl"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("low"));
  const Outcome none = cairn(*scratch, {"generate", "base", "--prompts", "unknown.jsonl"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.output, HasSubstr("unknown.jsonl:1: names the adapter lo: give --adapter lo=DIR"));
  const Outcome which = cairn(*scratch, {"generate", "base", "--adapter", "a=lora-adapter", "--adapter", "b=mos-adapter", "--prompt", "x"});
  EXPECT_EQ(which.code, 2);
  EXPECT_THAT(which.output, HasSubstr("say in a file which prompt has which"));
}

}  // namespace
}  // namespace cairn::cli
