#include "model/decoder/adapter_shape.h"
#include "model/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/decoder/decoder.h"
#include "model/trainable.h"

namespace cairn::model {
namespace {

TEST(NamePattern, LetsAStarStandForAnything) {
  for (const char* pattern : {"a.b.c", "*", "a*", "*c", "a*c", "*.b.*", "a.*.c", "**", "a.b.c*"})
    EXPECT_TRUE(matches(pattern, "a.b.c")) << pattern;
  for (const char* pattern : {"", "a", "b*", "*b", "a.b.c.", "*d*", "a?b.c", "a.b.cc"}) EXPECT_FALSE(matches(pattern, "a.b.c")) << pattern;
  EXPECT_TRUE(matches("*aab", "aaaab"));
  EXPECT_TRUE(matches("", ""));
}

TEST(AdapterShape, TargetsLayersByTheEndOfTheirNames) {
  const AdapterShape lora{.rank = 4, .alpha = 8, .targets = {"q_proj", "layers.1.mlp.*"}};
  EXPECT_TRUE(lora.targets_module("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(lora.targets_module("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(lora.targets_module("model.layers.0.self_attn.xq_proj"));
  EXPECT_FALSE(lora.targets_module("model.layers.11.mlp.up_proj"));
  EXPECT_EQ(lora.scale(), 2);
  EXPECT_EQ((AdapterShape{.rank = 4, .alpha = 8, .targets = {}, .by_root = true}.scale()), 4);
  EXPECT_FALSE(AdapterShape().targets_module("q_proj"));
}

std::vector<std::string> trained(const Model& model, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  const std::vector<bool> chosen = trainable(model, patterns);
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) names.push_back(model.parameters()[i].name);
  return names;
}

TEST(Trainable, IsChosenByNameRoleOrAdapter) {
  const auto plain = make_decoder({.layers = 1}), adapted = make_decoder({.layers = 1}, {.rank = 2, .targets = {"o_proj"}});
  EXPECT_EQ(trained(*plain, {}).size(), plain->parameters().size());
  const std::string o = "model.layers.0.self_attn.o_proj.";
  EXPECT_THAT(trained(*adapted, {}), testing::ElementsAre(o + "lora_A.weight", o + "lora_B.weight"));
  EXPECT_THAT(trained(*adapted, {"*.lora_B.*", "role:embedding"}), testing::ElementsAre("model.embed_tokens.weight", o + "lora_B.weight"));
  EXPECT_EQ(trained(*plain, {"role:norm"}).size(), 3u);
  try {
    trained(*plain, {"*.lora_*"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("model.train: \"*.lora_*\" fits no parameter"));
  }
}

}  // namespace
}  // namespace cairn::model
