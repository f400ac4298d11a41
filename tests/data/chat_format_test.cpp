#include "data/chat/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "data/chat/model_files.h"
#include "data/options.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;
using Files = std::map<std::string, std::string>;

const std::vector<ChatMessage> kShort = {{"user", "Hi"}, {"assistant", "Ho"}};

std::unique_ptr<Tokenizer> with_tokens(const std::vector<std::string>& specials) {
  const std::string_view text = "some text to learn from, some text";
  return make_bpe_tokenizer(train_bpe(std::span(&text, 1), {.vocab = 280, .specials = specials}));
}

std::string text_by(const ChatFormat& format) {
  std::string text;
  for (const TextSegment& part : format.renderer.render(kShort)) text += part.is_target ? "[" + part.text + "]" : part.text;
  return text;
}

DataOptions options_for(const std::string& word, const std::string& tokenizer_file = "") {
  DataOptions data;
  data.chat_template = word;
  data.tokenizer_file = tokenizer_file;
  return data;
}

TEST(ChatFormat, TakesTheTemplateInTheTokenizersFolderBeforeAnyOther) {
  const Scratch scratch;
  scratch.write("tokenizer_config.json",
                R"({"eos_token": "<|im_end|>", "chat_template": "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"})");
  const auto tokenizer = with_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  for (const char* word : {"auto", "model"}) {
    for (const std::string& place : {scratch.path("tokenizer.json"), scratch.path()}) {
      const ChatFormat format = choose_chat_format(options_for(word, place), tokenizer.get());
      EXPECT_TRUE(format.is_own);
      EXPECT_THAT(format.name, HasSubstr("tokenizer_config.json: chat_template"));
      EXPECT_EQ(text_by(format), "Hi<|im_end|>[Ho<|im_end|>]");
    }
  }
  scratch.write("chat_template.jinja", "{% for m in messages %}{{ m.content }}!{% endfor %}");
  const ChatFormat file = choose_chat_format(options_for("auto", scratch.path("tokenizer.json")), tokenizer.get());
  EXPECT_EQ(file.name, scratch.path("chat_template.jinja"));
  EXPECT_EQ(text_by(file), "Hi![Ho!]");
  EXPECT_NE(file.renderer.identity, choose_chat_format(options_for("plain", scratch.path()), tokenizer.get()).renderer.identity);
}

TEST(ChatFormat, WithoutOneTakesChatmlWhereTheTokenizerHasItsMarkersElseAlpaca) {
  const auto marked = with_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}), bare = with_tokens({"</s>"});
  EXPECT_EQ(choose_chat_format(options_for("auto"), nullptr).name, "chatml");  // one that will be learned gets them
  EXPECT_EQ(choose_chat_format(options_for("auto"), marked.get()).name, "chatml");
  const ChatFormat alpaca = choose_chat_format(options_for("auto"), bare.get());
  EXPECT_EQ(alpaca.name, "alpaca");
  EXPECT_THAT(text_by(alpaca), HasSubstr("### Response:\n[Ho</s>]"));
  EXPECT_EQ(text_by(choose_chat_format(options_for("plain"), bare.get())), "Hi\n\n[Ho</s>]");
}

TEST(ChatFormat, ReadsATemplateFromAFile) {
  const Scratch scratch;
  const std::string file = scratch.write("mine.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}");
  const auto tokenizer = with_tokens({"</s>"});
  const ChatFormat format = choose_chat_format(options_for(file), tokenizer.get());
  EXPECT_EQ(format.name, file);
  EXPECT_FALSE(format.is_own);
  // There is no generation prompt: what the assistant says begins with its role.
  EXPECT_EQ(text_by(format), "user: Hi</s>\n[assistant: Ho</s>\n]");
}

TEST(ChatFormat, RefusesWhatIsNotThere) {
  const Scratch scratch;
  const auto tokenizer = with_tokens({"</s>"});
  const auto says = [&](const std::string& word, const std::string& folder = "") {
    return refusal([&] { check_markers(choose_chat_format(options_for(word, folder), tokenizer.get()), *tokenizer); });
  };
  EXPECT_EQ(says("chatlm"), "unknown data.template \"chatlm\": did you mean \"chatml\"?");
  EXPECT_EQ(says("model"),
            "data.template = model: the tokenizer is made here and has no template; choose auto, chatml, alpaca, plain, or give the "
            "template's file");
  EXPECT_THAT(says("model", scratch.path()), HasSubstr(" has no chat template (no chat_template.jinja, no chat_template in "));
  EXPECT_EQ(says("none.jinja"), "data.template = none.jinja: no such file");
  EXPECT_THAT(says(scratch.write("bad.jinja", "{% fro %}")), HasSubstr("bad.jinja, line 1: unknown tag 'fro'"));
  EXPECT_THAT(says("chatml"), HasSubstr("the tokenizer has no token <|im_start|>"));
  EXPECT_EQ(refusal([] { check_template_keys(options_for("modle")); }), "unknown data.template \"modle\": did you mean \"model\"?");
  for (const char* good : {"auto", "model", "plain", "any.jinja"}) EXPECT_NO_THROW(check_template_keys(options_for(good)));
}

TEST(ChatFormat, GivesATemplateTheDateOfTheRecipe) {
  const Scratch scratch;
  const std::string file =
      scratch.write("dated.jinja", "{{ strftime_now('%a %d %b %Y') }}:{% for m in messages %}{{ m.content }};{% endfor %}");
  const auto tokenizer = with_tokens({"</s>"});
  DataOptions data = options_for(file);
  EXPECT_TRUE(needs_template_date(data));
  EXPECT_THAT(refusal([&] { text_by(choose_chat_format(data, tokenizer.get())); }), HasSubstr("Set data.template_date."));
  data.template_date = "2024-02-29";
  EXPECT_FALSE(needs_template_date(data));
  const ChatFormat format = choose_chat_format(data, tokenizer.get());
  EXPECT_EQ(text_by(format), "Thu 29 Feb 2024:Hi;[Ho;]");
  data.template_date = "2024-03-01";
  EXPECT_NE(choose_chat_format(data, tokenizer.get()).renderer.identity, format.renderer.identity);
  EXPECT_FALSE(needs_template_date(options_for("chatml")));
  for (const char* bad : {"2023-02-29", "29 Feb 2024", "2024-2-29", "2024-00-10", "2024-04-31", "today", "2024-02-29x", "-024-02-29"}) {
    data.template_date = bad;
    EXPECT_EQ(refusal([&] { check_template_keys(data); }),
              "data.template_date = " + std::string(bad) + ": is no date. Write it as 2026-01-31.");
  }
}

TEST(ChatFormat, AsksForADateWhereTheModelsOwnTemplateDoes) {
  const Scratch scratch;
  scratch.write("chat_template.jinja", "{{ strftime_now('%Y') if strftime_now is defined else '1999' }}{{ messages[0].content }}");
  for (const char* word : {"auto", "model"}) EXPECT_TRUE(needs_template_date(options_for(word, scratch.path())));
  EXPECT_FALSE(needs_template_date(options_for("alpaca", scratch.path())));
  EXPECT_FALSE(needs_template_date(options_for("auto")));
}

TEST(ChatFormat, KnowsTheTokenThatEndsAnAnswer) {
  const Scratch scratch;
  const auto tokenizer = with_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  const auto end = [&](const std::string& word) {
    return end_of_answer(choose_chat_format(options_for(word), tokenizer.get()), *tokenizer);
  };
  EXPECT_EQ(end("chatml"), tokenizer->id_of("<|im_end|>"));
  EXPECT_EQ(end("alpaca"), tokenizer->end_of_text());
  EXPECT_EQ(end(scratch.write("a.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}")), std::nullopt);
  EXPECT_EQ(end(scratch.write("b.jinja", "{{ raise_exception('a system message is needed') }}")), std::nullopt);
}

TEST(ChatFiles, OfATokenizerLearnedHereSayAllThatOthersNeed) {
  const auto tokenizer = with_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  Files files;
  put_chat_files(choose_chat_format(options_for("chatml"), tokenizer.get()), *tokenizer, {.eos = {0}}, files);
  const base::Json config = base::parse_json(files.at("tokenizer_config.json")),
                   ends = base::parse_json(files.at("generation_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["model_input_names"], (std::vector<std::string>{"input_ids", "attention_mask"}));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["chat_template"], built_in_template("chatml").text);
  EXPECT_EQ(ends["eos_token_id"], (std::vector<int64_t>{tokenizer->id_of("<|im_end|>").value(), 0}));
  EXPECT_EQ(ends["pad_token_id"], 0);
}

TEST(ChatFiles, KeepWhatTheModelBroughtAndAddWhatItLacks) {
  const Scratch scratch;
  const auto tokenizer = with_tokens({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  const int64_t stop = tokenizer->id_of("<|im_end|>").value();
  const std::string own = R"({"chat_template": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "odd": 1})";
  scratch.write("tokenizer_config.json", own);
  const ChatFormat format = choose_chat_format(options_for("auto", scratch.path()), tokenizer.get());
  Files files{{"tokenizer_config.json", own},
              {"generation_config.json", R"({"_from_model_config": true, "eos_token_id": 7, "top_p": 0.5})"}};
  put_chat_files(format, *tokenizer, {.eos = {7}}, files);
  EXPECT_EQ(files.at("tokenizer_config.json"), own);
  EXPECT_EQ(base::parse_json(files.at("generation_config.json")), (base::Json{{"eos_token_id", {stop, 7}}, {"top_p", 0.5}}));
  const Files before = files;
  put_chat_files(format, *tokenizer, {.eos = {7}}, files);
  EXPECT_EQ(files, before);  // it is all there
}

TEST(ChatFiles, PutAnotherTemplateInThePlaceOfTheOldOne) {
  const Scratch scratch;
  scratch.write("tokenizer_config.json", R"({"eos_token": "</s>", "odd": 1})");
  const auto tokenizer = with_tokens({"</s>"});
  Files files{{"chat_template.jinja", "old"}};
  put_chat_files(choose_chat_format(options_for("alpaca", scratch.path()), tokenizer.get()), *tokenizer, {.eos = {}}, files);
  EXPECT_FALSE(files.contains("chat_template.jinja"));
  const base::Json config = base::parse_json(files.at("tokenizer_config.json"));
  EXPECT_EQ(config["odd"], 1);  // of the file beside the tokenizer
  EXPECT_EQ(config["chat_template"], built_in_template("alpaca").text);
  EXPECT_FALSE(config.contains("tokenizer_class"));
  files["generation_config.json"] = "[1]";
  EXPECT_EQ(refusal([&] { put_chat_files(choose_chat_format(options_for("alpaca"), tokenizer.get()), *tokenizer, {.eos = {}}, files); }),
            "generation_config.json that came with the model is not a JSON object. Fix the file, or remove it there.");
}

}  // namespace
}  // namespace cairn::data
