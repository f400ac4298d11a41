// `cairn eval`, run as a user would run it.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
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

TEST_F(EvalCommand, GivesFiguresOfEachFileAndOfAllTogether) {
  const base::Json both = results({"--data", "a.txt", "b.jsonl"})["results"][0];
  ASSERT_EQ(both["files"].size(), 2u);
  double loss = 0, tokens = 0;
  for (const char* name : {"a.txt", "b.jsonl"}) {
    const base::Json alone = results({"--data", name})["results"][0], &of = both["files"][name[0] - 'a'];
    EXPECT_EQ(of["file"], name);
    for (const char* figure : {"documents", "tokens", "bytes"}) EXPECT_EQ(of[figure], alone[figure]) << name;
    for (const char* figure : {"loss", "perplexity", "bits_per_byte"})
      EXPECT_NEAR(of[figure].get<double>(), alone[figure].get<double>(), 1e-6 * alone[figure].get<double>()) << name;
    loss += of["loss"].get<double>() * of["tokens"].get<double>();
    tokens += of["tokens"].get<double>();
  }
  EXPECT_EQ(both["tokens"], tokens);
  EXPECT_NEAR(both["loss"].get<double>(), loss / tokens, 1e-6);
  const Outcome table = cairn(*scratch, {"eval", "run", "--data", "a.txt", "b.jsonl"});
  for (const char* row : {"a.txt      loss", "b.jsonl    loss", "all files  loss", "of 4 documents"})
    EXPECT_NE(table.output.find(row), std::string::npos) << row << "\n" << table.output;
  std::filesystem::create_directory(*scratch / "folder");
  scratch->file("folder/one.txt", "It slept.");
  scratch->file("folder/notes.csv", "a,b");
  const Outcome one = cairn(*scratch, {"eval", "run", "--data", "folder"});
  EXPECT_NE(one.output.find("of 1 document;"), std::string::npos) << one.output;
  EXPECT_NE(one.output.find("1 file in the folder is not read, by name or because it is empty: notes.csv"), std::string::npos)
      << one.output;
}

// The weights of the run as somebody else's directory: without a manifest, with these files beside it.
class EvalOfADirectory : public EvalCommand {
 protected:
  static void make(const std::string& name, const std::map<std::string, std::string>& files) {
    std::filesystem::create_directory(*scratch / name);
    for (const auto& step : std::filesystem::recursive_directory_iterator(*scratch / "run"))
      for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
        if (step.path().filename() == file)
          std::filesystem::copy_file(step.path(), *scratch / name / file, std::filesystem::copy_options::overwrite_existing);
    for (const auto& [file, text] : files) scratch->file(name + "/" + file, text);
  }

  static base::Json perplexity_of(const std::string& folder, const std::string& data) {
    const Outcome outcome = cairn(*scratch, {"eval", folder, "--json", "--data", data});
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return base::parse_json(outcome.output.substr(outcome.output.find("{\"model\"")))["results"][0];
  }
};

TEST_F(EvalOfADirectory, PutsBosBeforeATextOnlyWhereTheTokenizerDoes) {
  scratch->file("one.jsonl", "{\"text\": \"Once there was a cat.\"}\n");
  make("none", {{"tokenizer_config.json", R"({"bos_token": "<|endoftext|>"})"}});
  make("adds", {{"tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": true})"}});
  const base::Json none = perplexity_of("none", "one.jsonl"), adds = perplexity_of("adds", "one.jsonl"),
                   run = perplexity_of("run", "one.jsonl");
  EXPECT_EQ(none["before"], base::Json::array());
  EXPECT_EQ(adds["before"].size(), 1u);
  EXPECT_EQ(none["tokens"].get<int64_t>() + 1, adds["tokens"].get<int64_t>()) << "without context, the first token is not counted";
  // A model trained here has read the end of a document before each text; it is the same token.
  EXPECT_EQ(run["before"], adds["before"]);
  EXPECT_EQ(run["tokens"], adds["tokens"]);
  EXPECT_NEAR(run["loss"].get<double>(), adds["loss"].get<double>(), 1e-6);
}

// The template writes the first token itself, and no other is put before it.
TEST_F(EvalOfADirectory, ReadsConversationsAsTheirTemplateWritesThem) {
  const std::string chat = R"("chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")";
  make("bos", {{"tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": true, )" + chat + "}"}});
  make("plain", {{"tokenizer_config.json", R"({"bos_token": "<|endoftext|>", )" + chat + "}"}});
  scratch->file("chat.jsonl", R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": " xz"}]})");
  const base::Json with = perplexity_of("bos", "chat.jsonl"), without = perplexity_of("plain", "chat.jsonl");
  EXPECT_EQ(with["before"], base::Json::array());
  EXPECT_EQ(with["tokens"], without["tokens"]);
  EXPECT_NEAR(with["loss"].get<double>(), without["loss"].get<double>(), 1e-7);
  // As multiple choice judges them: the answer after the same ids.
  scratch->file("choice.jsonl", R"({"context": "q", "choices": [" xz", " b"], "answer": 0})");
  const Outcome judged = cairn(*scratch, {"eval", "bos", "--task", "multiple-choice", "choice.jsonl", "--items", "judged.jsonl"});
  EXPECT_EQ(judged.code, 0) << judged.output;
  const double likelihood = base::parse_json(scratch->text_of("judged.jsonl"))["log_likelihoods"][0];
  EXPECT_GT(with["tokens"].get<double>(), 0);
  EXPECT_NEAR(with["loss"].get<double>() * with["tokens"].get<double>(), -likelihood, 1e-4);
}

// The first token of a plain text is judged after the prefix, whatever other files hold.
TEST_F(EvalOfADirectory, ReadsPlainTextsBesideConversationsAsAlone) {
  const std::string chat = R"("chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}")";
  make("mixed", {{"tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": true, )" + chat + "}"}});
  const std::string said = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": " xz"}]})";
  scratch->file("talk.jsonl", said + "\n");
  scratch->file("plain.jsonl", "{\"text\": \"Once there was a cat.\"}\n");
  scratch->file("both.jsonl", said + "\n{\"text\": \"Once there was a cat.\"}\n");
  const auto measured = [&](const std::vector<std::string>& data) {
    std::vector<std::string> arguments{"eval", "mixed", "--json", "--data"};
    arguments.insert(arguments.end(), data.begin(), data.end());
    const Outcome outcome = cairn(*scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return base::parse_json(outcome.output.substr(outcome.output.find("{\"model\"")))["results"][0];
  };
  const base::Json talk = measured({"talk.jsonl"}), plain = measured({"plain.jsonl"});
  for (const std::string prompts : {"data.train_on_prompts=false", "data.train_on_prompts=true"}) {
    const base::Json two = measured({"talk.jsonl", "plain.jsonl", "--set", prompts});
    EXPECT_EQ(two["files"][1]["tokens"], plain["tokens"]) << prompts;
    EXPECT_NEAR(two["files"][1]["loss"].get<double>(), plain["loss"].get<double>(), 1e-6) << prompts;
    EXPECT_EQ(two["before"], plain["before"]) << prompts;
  }
  const base::Json both = measured({"both.jsonl"});
  EXPECT_EQ(both["tokens"].get<int64_t>(), talk["tokens"].get<int64_t>() + plain["tokens"].get<int64_t>());
  const auto sum = [](const base::Json& one) { return one["loss"].get<double>() * one["tokens"].get<double>(); };
  EXPECT_NEAR(sum(both), sum(talk) + sum(plain), 1e-4);
}

TEST_F(EvalOfADirectory, LimitsTheDocumentsOfEachFileAndLeavesOutFiguresOfNone) {
  const base::Json limited = results({"--data", "a.txt", "b.jsonl", "--limit", "1"})["results"][0];
  EXPECT_EQ(limited["documents"], 2);
  for (const base::Json& file : limited["files"]) EXPECT_EQ(file["documents"], 1) << file["file"];
  make("unbegun", {{"tokenizer_config.json", R"({"bos_token": "<|endoftext|>"})"}});
  scratch->file("one.txt", "q");  // its only token has no context
  const Outcome table = cairn(*scratch, {"eval", "unbegun", "--data", "a.txt", "one.txt"});
  EXPECT_EQ(table.code, 0) << table.output;
  EXPECT_EQ(table.output.find("nan"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find("one.txt: no token in it that can be judged"), std::string::npos) << table.output;
}

// Padded vocabularies are usual; a tokenizer with more ids belongs to another model.
TEST_F(EvalOfADirectory, RefusesATokenizerThatIsTooLargeAsGenerationDoes) {
  make("large", {});
  std::string json = scratch->text_of("large/tokenizer.json");
  const std::string more = R"("added_tokens": [{"id": 260, "content": "<more>", "special": true},)";
  json.replace(json.find("\"added_tokens\": ["), std::string("\"added_tokens\": [").size(), more);
  scratch->file("large/tokenizer.json", json);
  const std::string says = "large: its vocabulary has 260 entries, the tokenizer 261. Use the tokenizer that belongs to the model.";
  EXPECT_NE(refused({"eval", "large", "--data", "a.txt"}).find(says), std::string::npos);
  EXPECT_NE(refused({"generate", "large", "--prompt", "a"}).find(says), std::string::npos);
  EXPECT_NE(refused({"chat", "large"}).find(says), std::string::npos);
  EXPECT_NE(refused(tiny({"train", "--set", "model.from=large", "--data", "a.txt"})).find(says), std::string::npos);
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
