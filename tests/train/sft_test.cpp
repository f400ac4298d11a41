// Fine-tuning on conversations: what is learned, and what the snapshots say of it.
#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "data/chat/renderer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/tokenizer_config.h"
#include "harness/scratch_folder.h"
#include "train/settings.h"
#include "train/tuning.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

constexpr const char* kTalk = R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
{"instruction": "Say", "input": "it", "output": "It"}
{"conversations": [{"from": "human", "value": "A"}, {"from": "gpt", "value": "B"}]}
)";

base::Json json_in(const std::filesystem::path& file) { return base::parse_json(base::read_file(file.string(), 1 << 20)); }

TEST(Sft, LearnsWhatTheModelsOwnTemplateGivesTheAssistantAndHandsItOn) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), path = scratch.file("talk.jsonl", kTalk).string();
  const std::filesystem::path theirs = scratch / "theirs";
  std::filesystem::create_directory(theirs);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    std::filesystem::copy(std::filesystem::path(base) / name, theirs / name);
  const std::string config =
      R"({"eos_token": "<|endoftext|>", "chat_template": "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}{{ 'a:' if add_generation_prompt }}"})";
  std::ofstream(theirs / "tokenizer_config.json") << config;
  std::ofstream(theirs / "generation_config.json") << R"({"eos_token_id": 9, "max_length": 30})";
  const Sets sets{"model.from=" + theirs.string() + "/", "data.path=" + path, "data.template=auto", "data.packing=documents",
                  "train.global_batch=1"};
  tune(scratch / "run", sets);
  const std::filesystem::path written = snapshot::step_folder(scratch / "run", 1);
  EXPECT_EQ(base::read_file((written / "tokenizer_config.json").string(), 10'000), config);
  EXPECT_EQ(json_in(written / "generation_config.json"), (base::Json{{"eos_token_id", {256, 9}}, {"max_length", 30}}));
  // "Hello", "It" and "B", each with its end.
  EXPECT_EQ(numbers_of(scratch / "run", "tokens"), (std::vector<double>{6 + 3 + 2}));
  tune(scratch / "all", sets + Sets{"data.train_on_prompts=true"});
  // And "u:Hi$a:" (less the first token, which nothing comes before), "u:Say\n\nit$a:", "u:A$a:".
  EXPECT_EQ(numbers_of(scratch / "all", "tokens"), (std::vector<double>{11 + 6 + 11 + 5}));
}

TEST(Sft, OfANewModelWritesTheTemplateItWasTrainedWith) {
  const harness::ScratchFolder scratch;
  const std::string path = scratch.file("talk.jsonl", kTalk).string();
  tune(scratch / "run", {"model.layers=1", "model.embed=8", "model.heads=1", "model.kv_heads=1", "model.mlp=8", "data.vocab=264",
                         "data.path=" + path, "data.template=auto", "data.packing=documents", "train.global_batch=1", "data.length=64"});
  const std::filesystem::path written = snapshot::step_folder(scratch / "run", 1);
  const data::TokenizerConfig config = data::open_tokenizer_config(written.string());
  EXPECT_EQ(config.chat_template(), data::built_in_template("chatml").text);
  const auto tokenizer = data::open_tokenizer(written.string());
  EXPECT_EQ(json_in(written / "generation_config.json")["eos_token_id"],
            (std::vector<int64_t>{tokenizer->id_of("<|im_end|>").value(), tokenizer->end_of_text()}));
  // What comes next starts from there and finds the template.
  tune(scratch / "next", {"model.from=" + (scratch / "run").string(), "data.path=" + path, "data.template=model", "data.packing=documents",
                          "train.global_batch=1", "data.length=64"});
  EXPECT_EQ(json_in(snapshot::step_folder(scratch / "next", 1) / "tokenizer_config.json"), json_in(written / "tokenizer_config.json"));
}

TEST(Sft, RecordsTheDateThatATemplateAsksForSoThatAResumeHasIt) {
  const harness::ScratchFolder scratch;
  const std::string dated = scratch.file("dated.jinja", "{{ strftime_now('%Y') }}{{ messages[0].content }}").string();
  const auto resolved = [](base::Recipe recipe, const std::string& today) {
    Settings settings = read_settings(recipe);
    set_template_date(settings, recipe, today);
    EXPECT_THAT(recipe.resolved_toml(), HasSubstr("template_date = \"" + settings.data.template_date + "\""));
    return std::pair(settings.data.template_date, base::Recipe::parse(recipe.resolved_toml(), "recipe.toml"));
  };
  const auto [day, again] = resolved(tuning_recipe({"data.template=" + dated}), "2026-01-31");
  EXPECT_EQ(day, "2026-01-31");
  EXPECT_EQ(resolved(again, "2027-05-05").first, "2026-01-31");
  EXPECT_EQ(resolved(tuning_recipe({"data.template=" + dated, "data.template_date=1999-12-31"}), "2026-01-31").first, "1999-12-31");
  EXPECT_EQ(resolved(tuning_recipe({"data.template=chatml"}), "2026-01-31").first, "");  // it asks for none
}

TEST(Sft, ABatchThatHasOnlyPromptsTrainsNothingAndDoesNotEndTheRun) {
  const harness::ScratchFolder scratch;
  const std::string talk = R"({"messages": [{"role": "user", "content": ")" + std::string(60, 'x') +
                           R"("}, {"role": "assistant", "content": "Hello"}]})";
  tune(scratch / "run", {"model.layers=1", "model.embed=8", "model.heads=1", "model.kv_heads=1", "model.mlp=8", "data.vocab=264",
                         "data.path=" + scratch.file("talk.jsonl", talk + "\n").string(), "data.template=auto", "data.packing=stream",
                         "train.global_batch=1", "data.length=8", "train.steps=12", "data.sampler=sequential"});
  const std::vector<double> losses = numbers_of(scratch / "run", "loss");
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_THAT(losses, testing::Contains(0.0));
  EXPECT_THAT(losses, testing::Contains(testing::Gt(1.0)));
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
}

TEST(Sft, RefusesATemplateThatIsNotKnownBeforeAnythingIsRead) {
  try {
    base::Recipe recipe = tuning_recipe({"data.template=alpacca", "data.path=absent.jsonl"});
    read_settings(recipe);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown data.template \"alpacca\": did you mean \"alpaca\"?"));
  }
}

}  // namespace
}  // namespace cairn::train
