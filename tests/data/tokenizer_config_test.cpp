#include "data/tokenizer/tokenizer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;

TokenizerConfig config_of(const std::string& text) { return read_tokenizer_config(text, "tokenizer_config.json"); }

TEST(TokenizerConfig, ReadsTokensThatAreStringsOrObjects) {
  const TokenizerConfig config =
      config_of(R"({"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": false},
      "pad_token": null, "add_bos_token": true, "add_eos_token": false, "model_max_length": 4096, "tokenizer_class": "LlamaTokenizer"})");
  EXPECT_EQ(config.special_token("bos_token"), "<s>");
  EXPECT_EQ(config.special_token("eos_token"), "</s>");
  EXPECT_EQ(config.special_token("pad_token"), std::nullopt);
  EXPECT_EQ(config.add_bos_token, true);
  EXPECT_EQ(config.add_eos_token, false);
  EXPECT_EQ(config.model_max_length, 4096);
  EXPECT_EQ(config.chat_template(), std::nullopt);
  EXPECT_EQ(base::compact(config.template_variables()), R"({"bos_token":"<s>","eos_token":"</s>"})");
}

TEST(TokenizerConfig, TakesTheHugeLengthOfTransformersForNone) {
  EXPECT_EQ(config_of(R"({"model_max_length": 1000000000000000019884624838656})").model_max_length, std::nullopt);
  EXPECT_EQ(config_of("{}").add_bos_token, std::nullopt);
}

TEST(TokenizerConfig, ReadsOneTemplateOrSeveral) {
  EXPECT_EQ(config_of(R"({"chat_template": "{{ x }}"})").chat_template(), "{{ x }}");
  const TokenizerConfig several =
      config_of(R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  EXPECT_EQ(several.chat_template(), "a");
  EXPECT_EQ(several.chat_template("tool_use"), "b");
  EXPECT_EQ(several.chat_template("rag"), std::nullopt);
}

TEST(TokenizerConfig, PrefersTheFilesBesideIt) {
  const Scratch scratch;
  EXPECT_EQ(open_tokenizer_config(scratch.path()).chat_template(), std::nullopt);
  scratch.write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "old"})");
  EXPECT_EQ(open_tokenizer_config(scratch.path()).chat_template(), "old");
  scratch.write("chat_template.jinja", "new");
  std::filesystem::create_directory(scratch.path("additional_chat_templates"));
  scratch.write("additional_chat_templates/rag.jinja", "more");
  const TokenizerConfig config = open_tokenizer_config(scratch.path());
  EXPECT_EQ(config.chat_template(), "new");
  EXPECT_EQ(config.chat_template("rag"), "more");
  EXPECT_EQ(config.special_token("bos_token"), "<s>");
}

TEST(TokenizerConfig, RefusesWhatItCannotUse) {
  const auto says = [](const std::string& text) { return refusal([&] { config_of(text); }); };
  EXPECT_EQ(says("{"), "tokenizer_config.json: not valid JSON at byte 2");
  EXPECT_EQ(says("[]"), "tokenizer_config.json: holds no JSON object: not a tokenizer_config.json");
  EXPECT_EQ(says(R"({"a": 1, "a": 2})"), "tokenizer_config.json: the key \"a\" stands twice in one object");
  EXPECT_EQ(says(R"({"bos_token": 3})"), "tokenizer_config.json: bos_token is 3: must be a string, or an object with \"content\"");
  EXPECT_THAT(says(R"({"bos_token": ")" + std::string(2000, 'x') + "\"}"), HasSubstr("bos_token has 2000 bytes: at most 1024"));
  EXPECT_EQ(says(R"({"add_bos_token": 1})"), "tokenizer_config.json: add_bos_token is 1: must be true or false");
  EXPECT_EQ(says(R"({"model_max_length": -1})"), "tokenizer_config.json: model_max_length is -1: must be a number of at least 1");
  EXPECT_THAT(says(R"({"chat_template": 3})"), HasSubstr("chat_template is 3: must be a string, or a list"));
  EXPECT_THAT(says(R"({"chat_template": [{"name": "a"}]})"), HasSubstr("must be an object with \"name\" and \"template\""));
  EXPECT_THAT(says(R"({"chat_template": [{"name": "a", "template": ""}, {"name": "a", "template": ""}]})"), HasSubstr("holds \"a\" twice"));
  EXPECT_THAT(says(R"({"chat_template": ")" + std::string((1 << 20) + 1, 'x') + "\"}"), HasSubstr("chat_template has 1048577 bytes"));
  EXPECT_THAT(says(std::string(100'000, '[')), HasSubstr("nested more than 32 deep"));
  EXPECT_THAT(says(std::string((16 << 20) + 1, ' ')), HasSubstr("has at most 16777216"));
}

}  // namespace
}  // namespace cairn::data
