// What a new user gets wrong, and what they are told: one clear sentence, the right exit code, nothing left behind.
#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

struct Wrong {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<std::string> said;  // all of these appear
};

class WrongInput : public testing::TestWithParam<Wrong> {};

TEST_P(WrongInput, GetsOneClearSentenceAndExitCodeTwo) {
  const harness::ScratchFolder scratch;
  scratch.file("empty.txt", "");
  scratch.file("binary.bin", std::string("\x00\x01\x02\xff\xfe", 5) + std::string(1000, '\0'));
  scratch.file("short.txt", "Too short.");
  scratch.file("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  scratch.file("deep.json", "[" + std::string(1'000'000, '['));
  scratch.file("table.parquet", "PAR1....PAR1");
  scratch.file("cut.bin", std::string("\x88\xd8\x34\x01\x01\0\0\0\x09\0\0\0", 12) + std::string(1020, '\0'));
  scratch.file("typo.toml", "[train]\nsteps = 3\nstepz = 4\n");
  scratch.file("broken.toml", "[train\nsteps = 3\n");
  const Outcome outcome = cairn(scratch, GetParam().arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  for (const std::string& part : GetParam().said)
    EXPECT_NE(outcome.output.find(part), std::string::npos) << "lacks: " << part << "\nsaid: " << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(scratch / "runs")) << "something was left behind";
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, WrongInput,
    testing::Values(
        Wrong{"ATypoInAKeyOfTheRecipe", {"train", "typo.toml"}, {"train.stepz", "typo.toml:3", "did you mean", "train.steps"}},
        Wrong{"ATypoInASet", {"train", "--set", "optim.lerning_rate=1"}, {"optim.lerning_rate", "optim.learning_rate"}},
        Wrong{"AValueOutOfRange", {"train", "--set", "train.steps=0"}, {"train.steps", "0", "no step"}},
        Wrong{"AWrongType", {"train", "--set", "train.steps=\"many\""}, {"train.steps", "many"}},
        Wrong{"BrokenToml", {"train", "broken.toml"}, {"broken.toml:1"}},
        Wrong{"AMissingRecipe", {"train", "nowhere.toml"}, {"nowhere.toml"}},
        Wrong{"AMissingFile", {"train", "--data", "nowhere.txt"}, {"nowhere.txt"}},
        Wrong{"AnEmptyFile", {"train", "--data", "empty.txt"}, {"empty.txt", "empty"}},
        Wrong{"ABinaryFile", {"train", "--data", "binary.bin"}, {"binary.bin", "text"}},
        Wrong{"ATextTooShort", {"train", "--data", "short.txt"}, {"short.txt"}}, Wrong{"ADirectoryAsData", {"train", "--data", "."}, {"."}},
        Wrong{"ABadLine", {"train", "--data", "bad.jsonl"}, {"bad.jsonl:2", "invalid JSON", "data.on_bad"}},
        Wrong{"JsonNestedAMillionDeep", {"train", "--data", "deep.json"}, {"deep.json:1"}},
        Wrong{"AParquetFile", {"train", "--data", "table.parquet"}, {"table.parquet", "convert it"}},
        Wrong{"ACutShard", {"train", "--data", "cut.bin", "--set", "data.tokenizer=bytes"}, {"cut.bin", "9 tokens"}},
        Wrong{"AWeightTooFew", {"train", "--set", "data.weights=[1]"}, {"data.weights", "0 sources"}},
        Wrong{"PairsWithoutAFile", {"train", "--set", "data.kind=preference"}, {"data.kind = preference", "\"chosen\" and \"rejected\""}},
        Wrong{"DataThatAreNot", {"data", "inspect", "nowhere"}, {"nowhere", "no such file"}},
        Wrong{"AShardInTheWay", {"data", "tokenize", "short.txt", "--out", "empty.txt"}, {"empty.txt", "there already"}},
        Wrong{"NotARunDirectory", {"train", "--resume", "."}, {"not a run directory"}},
        Wrong{"AThousandRanks", {"train", "--nproc", "1000"}, {"--nproc 1000", "ranks"}},
        Wrong{"AMistypedOption", {"train", "--dta", "a.txt"}, {"unknown option --dta of `cairn train`: did you mean --data?"}},
        Wrong{"AMistypedOptionOfAnotherCommand", {"generate", "run", "--promt=x"}, {"`cairn generate`: did you mean --prompt?"}},
        Wrong{"ARecipeKeyAsAnOption", {"train", "--steps", "3"}, {"unknown option --steps", "did you mean --set train.steps=VALUE?"}},
        Wrong{"AnAliasOfAKeyAsAnOption", {"train", "--lr", "1"}, {"did you mean --set optim.learning_rate=VALUE?"}},
        Wrong{"AMistypedKeyAsAnOption", {"train", "--stepz", "3"}, {"--stepz", "did you mean --set train.steps=VALUE?"}},
        Wrong{"AnOptionLikeNoOther", {"doctor", "--quixotic"}, {"--quixotic of `cairn doctor`: `cairn doctor --help` lists"}},
        Wrong{"ANegativeSeed", {"train", "--seed", "-1"}, {"--seed: -1 must be a number of at least 0 (`cairn train --help`"}},
        Wrong{"ATextAsARecipe", {"train", "short.txt"}, {"short.txt: not a recipe (TOML): did you mean --data short.txt?"}},
        Wrong{"AFolderAsARecipe", {"plan", "."}, {".: not a recipe (TOML): did you mean --data .?"}},
        Wrong{"ABatchThatNoMachineHolds",
              {"train", "--set", "train.global_batch=100000000"},
              {"this run needs about", "and this machine has", "train.micro_batch", "--allow-oversize trains all the same"}},
        Wrong{"AnUnknownCommand", {"trian"}, {"trian"}}, Wrong{"HelpOnAnUnknownCommand", {"help", "trian"}, {"did you mean \"train\"?"}},
        Wrong{"AnUnknownProof", {"prove", "same-anwser"}, {"same-anwser", "same-answer"}},
        Wrong{"AFolderForAProofOfText", {"prove", "zero", "--data", "."}, {"--data .: a folder, and zero reads a text file", "mosa"}},
        Wrong{"AProofOnAnUnknownDevice", {"prove", "zero", "--device", "gpu"}, {"--device", "cuda"}},
        Wrong{"AnUnknownBench", {"bench", "train-gpu"}, {"train-gpu"}},
        Wrong{"AnUnknownCaseOfABench", {"bench", "parallel", "--case", "dp-3"}, {"--case dp-3", "dp-2", "zero3-4", "interleaved-4"}},
        Wrong{"HeadsThatDoNotDivide", {"train", "--set", "model.heads=3"}, {"model.heads"}},
        Wrong{"AModelThatIsNot", {"generate", "."}, {"no config.json there"}}),
    [](const auto& kind) { return kind.param.name; });

TEST(WrongInput, ARunIsNeverOverwritten) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, tiny({"train", "--out", "run", "--set", "train.steps=2"})).code, 0);
  const std::string before = scratch.text_of("run/metrics.jsonl");
  const Outcome again = cairn(scratch, tiny({"train", "--out", "run", "--set", "train.steps=2"}));
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.output.find("holds a run already"), std::string::npos) << again.output;
  EXPECT_EQ(scratch.text_of("run/metrics.jsonl"), before);
}

}  // namespace
}  // namespace cairn::cli
