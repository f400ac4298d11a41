// `cairn generate` and `cairn chat`, run as a user would run them.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/program.h"
#include "cli/text/chat_prompt.h"

namespace cairn::cli {
namespace {

class GenerateCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    std::vector<std::string> arguments = tiny({"train", "--out", "run", "--set", "train.steps=3"});
    std::replace(arguments.begin(), arguments.end(), std::string("data.length=16"), std::string("data.length=128"));
    ASSERT_EQ(cairn(*scratch, arguments).code, 0);
  }
  static void TearDownTestSuite() { scratch.reset(); }

  // The objects that --json prints.
  static std::vector<base::Json> texts(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"generate", "run", "--json"});
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(" tokens/s"), std::string::npos);
    std::vector<base::Json> found;
    for (size_t at = 0; (at = outcome.output.find("{\"prompt\"", at)) != std::string::npos; ++at)
      found.push_back(base::parse_json(outcome.output.substr(at, outcome.output.find('\n', at) - at)));
    return found;
  }

  static std::string refused(std::vector<std::string> arguments) {
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};
std::unique_ptr<harness::ScratchFolder> GenerateCommand::scratch;

TEST_F(GenerateCommand, PrintsIdsTextAndLogProbabilitiesAlikeEachTime) {
  const base::Json one = texts({"--prompt", "One", "--tokens", "5", "--greedy"}).at(0);
  EXPECT_EQ(one["prompt"], "One");
  EXPECT_GE(one["prompt_ids"].size(), 2u);  // what ends the text before it, and the prompt
  EXPECT_LE(one["ids"].size(), 5u);
  EXPECT_EQ(one["ids"].size(), one["log_probabilities"].size());
  EXPECT_TRUE(one["text"].is_string());
  EXPECT_TRUE(one["stopped"] == "tokens" || one["stopped"] == "end_of_text");
  EXPECT_EQ(texts({"--prompt", "One", "--tokens", "5", "--greedy"}).at(0), one);
  std::string ids;
  for (const base::Json& id : one["prompt_ids"]) ids += (ids.empty() ? "" : ",") + std::to_string(id.get<int>());
  EXPECT_EQ(texts({"--ids", ids, "--tokens", "5", "--greedy"}).at(0)["ids"], one["ids"]);
}

TEST_F(GenerateCommand, ContinuesTheLinesOfAFileEachAsIfItStoodAlone) {
  scratch->file("prompts.txt", "One\nTwo children went\r\nA");
  const std::vector<base::Json> together =
      texts({"--prompt-file", "prompts.txt", "--tokens", "6", "--samples", "2", "--temperature", "1.2"});
  ASSERT_EQ(together.size(), 6u);
  EXPECT_EQ(together[2]["prompt"], "Two children went");
  EXPECT_EQ(together[3]["sample"], 1);
  const std::vector<base::Json> alone = texts({"--prompt", "Two children went", "--tokens", "6", "--samples", "2", "--temperature", "1.2"});
  EXPECT_EQ(alone.at(0), together[2]);
  EXPECT_EQ(alone.at(1), together[3]);
  EXPECT_NE(texts({"--prompt", "Two children went", "--tokens", "6", "--temperature", "1.2", "--seed", "5"}).at(0)["ids"], alone[0]["ids"]);
}

TEST_F(GenerateCommand, EndsBeforeAStopStringAndAtTheModelsContext) {
  const base::Json all = texts({"--prompt", "O", "--tokens", "8", "--ignore-end", "--seed", "3"}).at(0);
  const std::string text = all["text"];
  const auto letter = std::find_if(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 127; });
  ASSERT_NE(letter, text.end());
  const base::Json cut = texts({"--prompt", "O", "--tokens", "8", "--ignore-end", "--seed", "3", "--stop", std::string(1, *letter)}).at(0);
  EXPECT_EQ(cut["text"], text.substr(0, static_cast<size_t>(letter - text.begin())));
  EXPECT_EQ(cut["stopped"], "stop");
  EXPECT_EQ(texts({"--prompt", "O", "--tokens", "800", "--ignore-end"}).at(0)["stopped"], "context");
}

TEST_F(GenerateCommand, ShowsPromptAndAnswerAsText) {
  const Outcome outcome = cairn(*scratch, {"generate", "run", "--prompt", "One", "--tokens", "3"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.output.find("One"), std::string::npos);
}

TEST_F(GenerateCommand, RefusesWhatItCannotDo) {
  scratch->file("empty.txt", "");
  EXPECT_NE(refused({"generate", "run", "--ids", "99999"}).find("--ids: 99999 is not in the vocabulary of 260"), std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--ids", "1", "--prompt", "a"}).find("give one of --prompt, --ids, --prompt-file and --prompts"),
            std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--prompt-file", "none.txt"}).find("none.txt"), std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--prompt-file", "empty.txt"}).find("no line in it"), std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--prompt", std::string(400, 'x')}).find("and the model reads at most 128"), std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--top-p", "2"}).find("--top-p 2: must be above 0"), std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--stop", ""}).find("--stop: an empty text"), std::string::npos);
  EXPECT_NE(refused({"generate", "none"}).find("none: no such directory"), std::string::npos);
  EXPECT_NE(refused({"chat", "run", "--temperature", "-1"}).find("--temperature -1"), std::string::npos);
}

TEST_F(GenerateCommand, GivesTheSameTextsOnSeveralRanks) {
  scratch->file("prompts.txt", "One\nTwo children went\nA");
  const std::vector<std::string> drawn{"--prompt-file", "prompts.txt", "--tokens", "6", "--samples", "2", "--temperature", "1.2"};
  const std::vector<base::Json> one = texts(drawn);
  const auto on = [&](std::vector<std::string> ranks) {
    ranks.insert(ranks.end(), drawn.begin(), drawn.end());
    return texts(ranks);
  };
  for (const std::vector<std::string>& ranks :
       std::vector<std::vector<std::string>>{{"--mesh", "tp=2"}, {"--mesh", "pp=2"}, {"--mesh", "pp=2,tp=2", "--transport", "local"}}) {
    const std::vector<base::Json> several = on(ranks);
    ASSERT_EQ(several.size(), one.size()) << ranks[1];
    for (size_t i = 0; i < one.size(); ++i) {
      for (const char* key : {"prompt", "sample", "prompt_ids", "ids", "text", "stopped"})
        EXPECT_EQ(several[i][key], one[i][key]) << ranks[1] << ", " << key << " of text " << i;
      for (size_t t = 0; t < one[i]["ids"].size(); ++t)
        EXPECT_NEAR(several[i]["log_probabilities"][t].get<double>(), one[i]["log_probabilities"][t].get<double>(), 1e-4);
    }
  }
}

TEST_F(GenerateCommand, ReadsItsShardsFromAHuggingFaceDirectory) {
  ASSERT_EQ(cairn(*scratch, {"snapshot", "export", "run", "--out", "hf", "--dtype", "bf16"}).code, 0);
  const auto ids = [&](std::vector<std::string> ranks) {
    std::vector<std::string> arguments{"generate", "hf", "--json", "--prompt", "One", "--tokens", "5", "--greedy"};
    arguments.insert(arguments.end(), ranks.begin(), ranks.end());
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    const size_t begin = outcome.output.find("\"ids\":");
    return outcome.output.substr(begin, outcome.output.find(']', begin) - begin);
  };
  const std::string one = ids({});
  EXPECT_NE(one.find(','), std::string::npos);
  EXPECT_EQ(ids({"--mesh", "tp=2", "--transport", "local"}), one);
}

TEST_F(GenerateCommand, WritesTextOnceHoweverManyRanksThereAre) {
  const Outcome outcome = cairn(*scratch, {"generate", "run", "--prompt", "One", "--tokens", "3", "--mesh", "tp=2", "--stop", "\x01"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.find("One"), 0u) << outcome.output;
  EXPECT_EQ(outcome.output.find("One", 1), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(" tokens/s"), outcome.output.rfind(" tokens/s"));
}

TEST_F(GenerateCommand, RefusesMeshesBeforeItStartsRanks) {
  const auto on = [&](const std::string& mesh) { return refused({"generate", "run", "--prompt", "a", "--mesh", mesh}); };
  EXPECT_NE(on("dp=2").find("--mesh dp=2: generation shards a model along tp, pp and ep"), std::string::npos);
  EXPECT_NE(on("pp=5").find("--mesh pp=5: 5 stages, and the model has 4 blocks; use at most pp=4"), std::string::npos);
  EXPECT_NE(on("tp=3").find("2 query and 1 key heads cannot be split over so many ranks"), std::string::npos);
  EXPECT_NE(on("tq=2").find("tq"), std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--mesh", "tp=2", "--nproc", "3"}).find("--nproc 3 --mesh tp=2: the mesh is 2 ranks"),
            std::string::npos);
  EXPECT_NE(refused({"generate", "run", "--mesh", "tp=2", "--links", "3"}).find("--links"), std::string::npos);
  EXPECT_NE(refused({"generate", "none", "--mesh", "tp=2"}).find("none: no such directory"), std::string::npos);
}

TEST_F(GenerateCommand, ReportsAWrongPromptOnceAndEndsAllRanks) {
  const std::string output = refused({"generate", "run", "--ids", "99999", "--mesh", "tp=2"});
  EXPECT_NE(output.find("--ids: 99999 is not in the vocabulary of 260"), std::string::npos) << output;
  EXPECT_EQ(output.find("99999"), output.rfind("99999")) << output;
}

TEST_F(GenerateCommand, ChatAnswersLineByLineAndKnowsItsCommands) {
  scratch->file("said.txt", "/help\nHi\nAnd you?\nOnce more\n/reset\n\n" + std::string(300, 'x') + "\n/quit\nnever\n");
  const std::string program = std::string(CAIRN_BINARY_DIR) + "/cairn";
  const study::ProcessResult ended =
      study::run_program({"env", "-C", scratch->path().string(), "sh", "-c", "\"$0\" chat run --tokens 3 < said.txt", program},
                         (*scratch / "chat.txt").string());
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_NE(ended.output.find("no command /help"), std::string::npos);
  EXPECT_NE(ended.output.find("(that is "), std::string::npos) << ended.output;
  EXPECT_EQ(ended.output.find("reads at most"), ended.output.rfind("reads at most")) << "older exchanges make way for new ones";
  EXPECT_NE(ended.output.find("(a new conversation)"), std::string::npos);
}

TEST(ChatPrompt, WritesChatMl) {
  EXPECT_EQ(render_chatml({{"system", "Be kind."}, {"user", "Hi"}}),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatPrompt, FollowsTheTemplateOfTheFolder) {
  const harness::ScratchFolder scratch;
  EXPECT_EQ(chat_renderer(scratch.path().string())({{"user", "Hi"}}), render_chatml({{"user", "Hi"}}));
  scratch.file("tokenizer_config.json",
               "{\"bos_token\":\"<s>\",\"chat_template\":\"{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
               "{% if add_generation_prompt %} ->{% endif %}\"}");
  EXPECT_EQ(chat_renderer(scratch.path().string())({{"user", "Hi"}}), "<s>[user] Hi ->");
}

}  // namespace
}  // namespace cairn::cli
