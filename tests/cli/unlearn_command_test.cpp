// `cairn unlearn`, and a store that answers, run as a user would run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "program.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

class UnlearnCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    std::vector<std::string> base = tiny({"train", "--out", "base", "--set", "train.steps=2"});
    std::replace(base.begin(), base.end(), std::string("model.layers=1"), std::string("model.layers=4"));
    std::replace(base.begin(), base.end(), std::string("data.length=16"), std::string("data.length=64"));
    ASSERT_EQ(cairn(*scratch, base).code, 0);
    std::string records;
    for (int i = 0; i < 12; ++i)
      records += "{\"text\": \"somebody number " + std::to_string(i) + " went out\", \"user\": " + std::to_string(i % 3) + "}\n";
    scratch->file("records.jsonl", records);
    scratch->file("unlearn.toml", R"(
model = {from = "base", adapter = {rank = 2}}
data = {path = "records.jsonl", length = 48, packing = "none"}
train = {epochs = 1, global_batch = 3}
optim = {warmup_steps = 0}
unlearning = {shards = 2, slices = 2, budget = 2}
)");
    const Outcome made = run({"train", "unlearn.toml", "--out", "made"});
    ASSERT_EQ(made.code, 0) << made.output;
    EXPECT_THAT(made.output, HasSubstr("made: 12 records in 2 shards of 2 slices, 2 orders each"));
    EXPECT_THAT(made.output, HasSubstr("8 stages trained"));
    EXPECT_THAT(made.output, HasSubstr("2 of 2 shards answer (stages: 2, 2)"));
  }
  static void TearDownTestSuite() { scratch.reset(); }

  static Outcome run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "unlearn");
    return cairn(*scratch, arguments);
  }
  void SetUp() override {
    std::filesystem::remove_all(*scratch / "store");
    std::filesystem::copy(*scratch / "made", *scratch / "store", std::filesystem::copy_options::recursive);
  }
  static std::string refused(const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  }
  static std::string answer(const std::string& model) {
    const Outcome said = cairn(*scratch, {"generate", model, "--prompt", "somebody", "--tokens", "6", "--greedy", "--json"});
    EXPECT_EQ(said.code, 0) << said.output;
    const size_t at = said.output.find("{\"prompt\"");
    if (at == std::string::npos) return said.output;
    const base::Json json = base::parse_json(said.output.substr(at, said.output.find('\n', at) - at));
    return base::compact(json["log_probabilities"]);
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};
std::unique_ptr<harness::ScratchFolder> UnlearnCommand::scratch;

TEST_F(UnlearnCommand, DeletesAuditsAndRepairs) {
  const std::string whole = answer("store"), base = answer("base");
  EXPECT_NE(whole, base);
  EXPECT_EQ(answer("store"), whole);
  const Outcome deleted = run({"delete", "store", "7"});
  EXPECT_EQ(deleted.code, 0) << deleted.output;
  EXPECT_THAT(deleted.output, HasSubstr("1 record deleted in "));
  EXPECT_THAT(deleted.output, HasSubstr("removed from the disk: 1 record, 3 artifacts"));
  EXPECT_NE(answer("store"), whole);
  EXPECT_THAT(run({"delete", "store", "7"}).output, HasSubstr("record 7 is deleted already"));
  const Outcome audited = run({"audit", "store"});
  EXPECT_EQ(audited.code, 0) << audited.output;
  EXPECT_THAT(audited.output, HasSubstr("12 records, 1 deleted"));
  EXPECT_THAT(audited.output, HasSubstr("nothing that is served has read a deleted record"));
  EXPECT_THAT(run({"capacity", "store"}).output, HasSubstr("deletions until then"));
  const Outcome repaired = run({"repair", "store"});
  EXPECT_EQ(repaired.code, 0) << repaired.output;
  EXPECT_THAT(repaired.output, HasSubstr("3 stages trained"));
  EXPECT_THAT(repaired.output, HasSubstr("2 of 2 shards answer (stages: 2, 2)"));
}

TEST_F(UnlearnCommand, EvaluatesAStoreAsAnEnsemble) {
  scratch->file("text.txt", "somebody number 5 went out and came back again");
  const Outcome measured = cairn(*scratch, {"eval", "store", "--data", "text.txt"});
  EXPECT_EQ(measured.code, 0) << measured.output;
  EXPECT_THAT(measured.output, HasSubstr("perplexity"));
}

TEST_F(UnlearnCommand, WithoutALiveOrderTheBaseModelAnswersAndSaysSo) {
  const std::string base = answer("base");
  const Outcome deleted = run({"delete", "store", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"});
  EXPECT_THAT(deleted.output, HasSubstr("0 of 2 shards answer (stages: none, none); the base model answers alone"));
  EXPECT_EQ(answer("store"), base);
  EXPECT_THAT(cairn(*scratch, {"generate", "store", "--prompt", "a", "--tokens", "1"}).output, HasSubstr("the base model answers"));
  const Outcome repaired = run({"repair", "store"});
  EXPECT_EQ(repaired.code, 0);
  EXPECT_THAT(repaired.output, HasSubstr("all records of a slice are deleted"));
}

TEST_F(UnlearnCommand, DeletesByAField) {
  const Outcome deleted = run({"delete", "store", "--where", "user=2", "--json"});
  ASSERT_EQ(deleted.code, 0) << deleted.output;
  const base::Json json = base::parse_json(deleted.output);
  EXPECT_EQ(json["deleted"], base::Json({2, 5, 8, 11}));
  EXPECT_EQ(json["purged_records"], 4);
}

TEST_F(UnlearnCommand, RefusesWhatItCannotDo) {
  EXPECT_THAT(refused({"delete", "store", "12"}), HasSubstr("record 12: store has records 0 to 11. Nothing was deleted."));
  EXPECT_THAT(refused({"delete", "store"}), HasSubstr("which records?"));
  EXPECT_THAT(refused({"delete", "store", "--where", "user"}), HasSubstr("give FIELD=VALUE"));
  EXPECT_THAT(refused({"delete", "store", "--where", "user=9"}), HasSubstr("no record in store has it"));
  EXPECT_THAT(refused({"audit", "base"}), HasSubstr("base: no store of cairn unlearn"));
  EXPECT_THAT(refused({"train", "unlearn.toml", "--out", "store", "--set", "unlearning.partition_seed=4"}),
              HasSubstr("unlearning.partition_seed = 4: store was made with 0"));
  EXPECT_THAT(refused({"train", "unlearn.toml", "--out", "other", "--set", "model.adapter.kind=mos"}),
              HasSubstr("model.adapter.kind = mos: layers of all stages take pieces of the same pools"));
  EXPECT_THAT(refused({"train", "unlearn.toml", "--out", "other", "--set", "unlearning.slices=5"}),
              HasSubstr("4 layers cannot isolate 5 slices"));
  const Outcome meshed = cairn(*scratch, {"generate", "store", "--prompt", "a", "--mesh", "tp=2"});
  EXPECT_EQ(meshed.code, 2);
  EXPECT_THAT(meshed.output, HasSubstr("store is a store of cairn unlearn"));
  const Outcome adapted = cairn(*scratch, {"generate", "store", "--prompt", "a", "--adapter", "x=base"});
  EXPECT_EQ(adapted.code, 2);
  EXPECT_THAT(adapted.output, HasSubstr("has adapters of its own"));
}

TEST_F(UnlearnCommand, ContinuesAStore) {
  std::filesystem::remove_all(*scratch / "store" / "artifacts" / "s0-0.1");
  const Outcome went_on = run({"train", "unlearn.toml", "--out", "store"});
  EXPECT_EQ(went_on.code, 0) << went_on.output;
  EXPECT_THAT(went_on.output, HasSubstr("1 stage trained"));
}

}  // namespace
}  // namespace cairn::cli
