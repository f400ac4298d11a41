#include "sync/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::sync {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::string refusal_of(const std::string& toml) {
  base::Recipe recipe = base::Recipe::parse(toml, "x.toml");
  try {
    read_dp_sync(recipe);
    read_island_sync(recipe);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "";
}

TEST(Rules, AreTheNamesThatTheRecipeTakes) {
  const std::string refusal = refusal_of("[sync.dp]\nkind = \"all_reduc\"\n");
  EXPECT_THAT(refusal, HasSubstr("all_reduce"));
  EXPECT_THAT(refusal, HasSubstr("x.toml:2"));
}

TEST(Rules, StateTheirNeeds) {
  EXPECT_THAT(rule_names(), Contains("all_reduce"));
  EXPECT_THAT(remote_rule_names(), IsSupersetOf({"diloco", "streaming_diloco"}));
  EXPECT_FALSE(needs_of("all_reduce").local_steps);
  EXPECT_TRUE(needs_of("gossip").local_steps);
  EXPECT_THROW(needs_of("dilco"), Error);
}

TEST(Rules, RefuseKeysOfOthers) {
  EXPECT_THAT(refusal_of("[sync.island]\nkind = 'co2'\nblend = 0.5"), HasSubstr("blend: is for kind = streaming_diloco, and kind is co2"));
  EXPECT_THAT(refusal_of("[sync.island]\nouter_warmup = 2"),
              HasSubstr("outer_warmup: is for kind = diloco or streaming_diloco, and kind is all_reduce"));
  EXPECT_EQ(refusal_of("[sync.island]\nkind = 'streaming_diloco'\nouter_warmup = 2\nblend = 0.5\ntimeout_s = 3"), "");
}

// Keys of a rule that SyncOptions knows nothing of.
struct OwnOptions {
  int64_t radius = 3;
};

TEST(Rules, MayHaveOptionsOfTheirOwn) {
  const RuleKeys keys =
      own_keys(base::Schema<OwnOptions>{"sync.island", "With kind = \"x\".", {{"radius", &OwnOptions::radius, "How far."}}});
  SyncOptions options;
  EXPECT_EQ(own_options<OwnOptions>(options).radius, 3);
  base::Recipe recipe = base::Recipe::parse("[sync.island]\nradius = 5\n", "x.toml");
  keys.read(recipe, options);
  EXPECT_EQ(own_options<OwnOptions>(options).radius, 5);
  EXPECT_THAT(keys.values(options), ElementsAre(base::Setting(int64_t{5})));
}

}  // namespace
}  // namespace cairn::sync
