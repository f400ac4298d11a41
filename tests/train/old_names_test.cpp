// Recipes of earlier versions: each retired key and word is read as the present one, with a hint.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/recipe.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

struct Renamed {
  std::string name;  // of the test
  std::string old;   // as an earlier recipe has it; no value is the default
  std::string present;
  std::string hint;
};

Renamed key(std::string name, const std::string& old, const std::string& present, const std::string& value) {
  return {std::move(name), old + " = " + value, present + " = " + value,
          "r.toml:1: " + old + " is now " + present + "; the old name still works"};
}

class OldNames : public testing::TestWithParam<Renamed> {};

std::string resolved(base::Recipe& recipe) {
  read_settings(recipe);
  return recipe.resolved_toml();
}

TEST_P(OldNames, AreReadAsThePresentOnes) {
  const Renamed& one = GetParam();
  base::Recipe old = base::Recipe::parse(one.old, "r.toml"), present = base::Recipe::parse(one.present, "r.toml");
  EXPECT_EQ(resolved(old), resolved(present));
  EXPECT_NE(old.resolved_toml().find("  # r.toml:"), std::string::npos);
  EXPECT_THAT(old.hints(recipe_sections()), testing::ElementsAre(one.hint));
  EXPECT_THAT(present.hints(recipe_sections()), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Keys, OldNames,
                         testing::Values(key("LateSums", "tensor.late_sums", "tensor.overlap_residual_sums", "false"),
                                         key("LearnPrompts", "data.learn_prompts", "data.train_on_prompts", "true"),
                                         key("FactorDecay", "optim.factor_decay", "optim.adafactor_decay_rate", "0.7"),
                                         key("FactorClip", "optim.factor_clip", "optim.adafactor_clip_threshold", "2.0"),
                                         key("FactorBeta1", "optim.factor_beta1", "optim.adafactor_beta1", "0.9"),
                                         key("MuonAdamwShare", "optim.muon_adamw_share", "optim.muon_adamw_lr_ratio", "0.5"),
                                         key("FinalShare", "optim.final_share", "optim.min_lr_ratio", "0.3"),
                                         key("Clip", "optim.clip", "optim.max_grad_norm", "0.25"),
                                         Renamed{"PaceAlike", "sync.island = {kind = \"diloco\", pace = \"alike\"}",
                                                 "sync.island = {kind = \"diloco\", pace = \"equal\"}",
                                                 "r.toml:1: sync.island.pace = \"alike\" is now \"equal\"; the old word still works"}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cairn::train
