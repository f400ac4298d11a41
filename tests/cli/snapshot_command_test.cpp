// `cairn snapshot inspect`, `verify`, `reshape` and `diff`, and `cairn replay`, run as a user would run them.
#include <fstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/program.h"

namespace cairn::cli {
namespace {

class SavedRunCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    ASSERT_EQ(cairn(*scratch, tiny({"train", "--out", "run", "--nproc", "2", "--set", "train.steps=7", "--set", "snapshot.every=3"})).code,
              0);
  }
  static void TearDownTestSuite() { scratch.reset(); }

  static base::Json json_line(const std::string& output) {
    const size_t begin = output.find("{\"");
    return base::parse_json(output.substr(begin, output.find('\n', begin) - begin));
  }

  static void flip_last_byte(const std::filesystem::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(byte);
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};
std::unique_ptr<harness::ScratchFolder> SavedRunCommand::scratch;

TEST_F(SavedRunCommand, InspectShowsWhatIsInside) {
  const Outcome shown = cairn(*scratch, {"snapshot", "inspect", "run"});
  EXPECT_EQ(shown.code, 0) << shown.output;
  for (const char* words :
       {"snapshots/step-00000007", "7 (saved by Cairn ", "llama, ", "1 layers, embed 16", "tokenizer.json, 260 tokens", "next_sample 35",
        "train.steps = 7  # --set", "training/rank-00000.safetensors", "model.layers.0.self_attn.q_proj.weight", "[16, 16]"})
    EXPECT_NE(shown.output.find(words), std::string::npos) << words << "\n" << shown.output;
  const base::Json json = json_line(cairn(*scratch, {"snapshot", "inspect", "run/snapshots/step-00000006", "--json"}).output);
  EXPECT_EQ(json["step"], 6);
  EXPECT_EQ(json["family"], "llama");
  EXPECT_EQ(json["state"]["step"], 6);
  EXPECT_EQ(json["tokenizer"]["vocab"], 260);
  EXPECT_GT(json["tensors"].size(), 10u);
}

TEST_F(SavedRunCommand, ReshapedThereAndBackItIsTheSame) {
  const auto reshape = [&](const char* from, const char* to, std::vector<std::string> more) {
    more.insert(more.begin(), {"snapshot", "reshape", from, "--out", to});
    const Outcome made = cairn(*scratch, more);
    EXPECT_EQ(made.code, 0) << made.output;
  };
  reshape("run", "three", {"--mesh", "dp=3", "--set", "memory.zero=3"});
  EXPECT_TRUE(std::filesystem::exists(*scratch / "three" / "snapshots" / "step-00000007" / "training" / "rank-00002.safetensors"));
  reshape("three", "tensor", {"--mesh", "tp=2", "--set", "memory.zero=0"});
  reshape("tensor", "back", {"--mesh", "dp=2"});
  const Outcome same = cairn(*scratch, {"snapshot", "diff", "run", "back"});
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_NE(same.output.find("no difference: "), std::string::npos) << same.output;
  const Outcome again = cairn(*scratch, {"snapshot", "reshape", "run", "--out", "back"});
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.output.find("it is there already"), std::string::npos) << again.output;
}

TEST_F(SavedRunCommand, DiffNamesWhatDiffers) {
  const Outcome other = cairn(*scratch, {"snapshot", "diff", "run", "run/snapshots/step-00000006"});
  EXPECT_EQ(other.code, 1) << other.output;
  for (const char* words : {"model: model.layers.0.self_attn.q_proj.weight: 256 elements differ, by at most ", "optimizer: exp_avg.",
                            "training/state.json: differs", "different: "})
    EXPECT_NE(other.output.find(words), std::string::npos) << words << "\n" << other.output;
  const base::Json json = json_line(cairn(*scratch, {"snapshot", "diff", "run", "run/snapshots/step-00000006", "--json"}).output);
  EXPECT_FALSE(json["same"].get<bool>());
  EXPECT_GT(json["differences"].size(), 10u);
}

TEST_F(SavedRunCommand, VerifyPassesWholeSnapshotsAndNamesWhatIsDamaged) {
  const Outcome whole = cairn(*scratch, {"snapshot", "verify", "run"});
  EXPECT_EQ(whole.code, 0) << whole.output;
  EXPECT_NE(whole.output.find("step-00000007: whole: "), std::string::npos) << whole.output;
  EXPECT_NE(whole.output.find("step-00000003: whole: "), std::string::npos);
  std::filesystem::copy(*scratch / "run", *scratch / "damaged", std::filesystem::copy_options::recursive);
  flip_last_byte(*scratch / "damaged" / "snapshots" / "step-00000006" / "model.safetensors");
  const Outcome damaged = cairn(*scratch, {"snapshot", "verify", "damaged"});
  EXPECT_EQ(damaged.code, 2);
  EXPECT_NE(damaged.output.find("step-00000007: whole: "), std::string::npos);
  EXPECT_NE(damaged.output.find("step-00000006: DAMAGED: "), std::string::npos);
  EXPECT_NE(damaged.output.find("model.safetensors: tensor "), std::string::npos) << damaged.output;
  const base::Json json = json_line(cairn(*scratch, {"snapshot", "verify", "damaged/snapshots/step-00000006", "--json"}).output);
  EXPECT_EQ(json["whole"], false);
  EXPECT_EQ(json["faults"][0]["file"], "model.safetensors");
  EXPECT_EQ(cairn(*scratch, {"snapshot", "verify", "none"}).code, 2);
}

TEST_F(SavedRunCommand, MergeAveragesModelsThatThenLoadAndEvaluate) {
  ASSERT_EQ(cairn(*scratch,
                  {"snapshot", "merge", "run/snapshots/step-00000003", "run/snapshots/step-00000007", "--weights", "1,3", "--out", "mean"})
                .code,
            0);
  scratch->file("text.txt", "One day a child went out.\n");
  const Outcome scored = cairn(*scratch, {"eval", "mean", "--data", "text.txt", "--json"});
  EXPECT_EQ(scored.code, 0) << scored.output;
  EXPECT_EQ(cairn(*scratch, {"generate", "mean", "--prompt", "One", "--tokens", "2"}).code, 0);
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"snapshot", "merge"});
    arguments.insert(arguments.end(), {"--out", "never"});
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(*scratch / "never"));
    return outcome.output;
  };
  EXPECT_NE(refused({"run"}).find("one model has nothing to be merged with"), std::string::npos);
  EXPECT_NE(refused({"run", "mean", "--undo"}).find("--undo: subtracts an adapter"), std::string::npos);
  EXPECT_NE(refused({"run", "mean", "--adapter", "x"}).find("--adapter x: is added to one model, and 2 are given"), std::string::npos);
  EXPECT_NE(refused({"run", "none"}).find("none: no such directory"), std::string::npos);
}

// One-byte training: its base and its log give the model that the run ended with.
TEST_F(SavedRunCommand, ReplayOfALogGivesTheModelOfTheRun) {
  ASSERT_EQ(cairn(*scratch, {"train", "--out", "tuned", "--nproc", "2", "--set", "model.from=run", "--set", "train.method=one_byte",
                             "--set", "train.one_byte.samples_per_round=2", "--set", "train.steps=4", "--set", "train.global_batch=4",
                             "--set", "data.stories_bytes=20000", "--set", "data.length=16"})
                .code,
            0);
  const Outcome replayed = cairn(*scratch, {"snapshot", "replay", "run", "tuned/rounds.bin", "--out", "again"});
  EXPECT_EQ(replayed.code, 0) << replayed.output;
  EXPECT_NE(replayed.output.find("rounds 1 to 4"), std::string::npos) << replayed.output;
  ASSERT_EQ(cairn(*scratch, {"snapshot", "export", "tuned", "--out", "exported"}).code, 0);
  EXPECT_EQ(scratch->text_of("again/model.safetensors"), scratch->text_of("exported/model.safetensors"));
  const Outcome nothing = cairn(*scratch, {"snapshot", "replay", "tuned", "tuned/rounds.bin", "--out", "same"});
  EXPECT_NE(nothing.output.find("tuned has all 4 rounds of the log"), std::string::npos) << nothing.output;
  const Outcome refused = cairn(*scratch, {"snapshot", "replay", "run/snapshots/step-00000003", "tuned/rounds.bin", "--out", "never"});
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_FALSE(std::filesystem::exists(*scratch / "never"));
}

// The run was made by processes, the replay by threads.
TEST_F(SavedRunCommand, ReplayGivesAStepsNumbersBitForBit) {
  for (const char* step : {"1", "5", "7"}) {
    const Outcome again = cairn(*scratch, {"replay", "run", "--step", step});
    EXPECT_EQ(again.code, 0) << again.output;
    EXPECT_NE(again.output.find("Both are bitwise identical."), std::string::npos) << again.output;
  }
  const base::Json json = json_line(cairn(*scratch, {"replay", "run", "--step", "5", "--text", "--json"}).output);
  EXPECT_EQ(json["equal"], true);
  EXPECT_EQ(json["from_step"], 3);
  EXPECT_EQ(json["batch"], 4);
  EXPECT_EQ(json["samples"].size(), 5u);
  EXPECT_FALSE(json["samples"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(json["then"], json["now"]);
}

TEST_F(SavedRunCommand, ReplaySaysThatNumbersDifferAndWhy) {
  std::filesystem::copy(*scratch / "run", *scratch / "other", std::filesystem::copy_options::recursive);
  std::string metrics = scratch->text_of("other/metrics.jsonl");
  const size_t at = metrics.find("\"loss\":", metrics.find("\"step\":5")) + 7;
  metrics.replace(at, metrics.find(',', at) - at, "1.5");
  scratch->file("other/metrics.jsonl", metrics);
  const Outcome changed = cairn(*scratch, {"replay", "other", "--step", "5", "--nproc", "1"});
  EXPECT_EQ(changed.code, 1) << changed.output;
  EXPECT_NE(changed.output.find("They are NOT the same."), std::string::npos) << changed.output;
  EXPECT_NE(changed.output.find("other ranks: 2 then, 1 now"), std::string::npos) << changed.output;
  EXPECT_EQ(cairn(*scratch, {"replay", "run", "--step", "8"}).code, 2);
  EXPECT_EQ(cairn(*scratch, {"replay", "none", "--step", "1"}).code, 2);
}

}  // namespace
}  // namespace cairn::cli
