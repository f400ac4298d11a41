#include "base/schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "base/recipe.h"
#include "error_of.h"

namespace cairn::base {
namespace {

struct Options {
  bool shuffle = true;
  int64_t steps = 100;
  double rate = 0.7;
  std::string precision = "fp32";
  std::vector<std::string> files = {"a|b"};
  std::vector<int64_t> sizes = {1, 2};
  std::vector<double> weights;
};

Schema<Options> schema() {
  using O = Options;
  return {"train",
          "What the loop does.",
          {{"shuffle", &O::shuffle, "Mixes the samples."},
           {"steps", &O::steps, "Optimizer steps.", at_least(1), {"max_steps", "iterations"}},
           {"rate", &O::rate, "Step size.", between(0, 2)},
           {"precision", &O::precision, "Number format.", one_of({"fp32", "bf16"})},
           {"files", &O::files, "Text files.", any()},
           {"sizes", &O::sizes, "Sizes.", more_than(0)},
           {"weights", &O::weights, "Weights.", at_least(0)}}};
}

TEST(Schema, TakesDefaultsFromTheStruct) {
  const Section section = schema().section();
  ASSERT_EQ(section.entries.size(), 7u);
  EXPECT_EQ(std::get<int64_t>(section.entries[1].default_value), 100);
  EXPECT_EQ(std::get<double>(section.entries[2].default_value), 0.7);
  EXPECT_EQ(section.entries[1].aliases[1], "iterations");
}

TEST(Schema, CarriesValuesToTheStructAndBack) {
  const Schema<Options> s = schema();
  Options options;
  options.steps = 7;
  options.weights = {0.5};
  Options copy;
  s.assign(copy, s.values_of(options));
  EXPECT_EQ(copy.steps, 7);
  EXPECT_EQ(copy.weights, std::vector<double>{0.5});
  EXPECT_EQ(copy.files, options.files);
}

enum class Mode { none, full, budget };
constexpr EnumName<Mode> kModeNames[] = {{Mode::none, "none"}, {Mode::full, "full"}, {Mode::budget, "budget"}};

struct EnumOptions {
  Mode mode = Mode::full;
};

Schema<EnumOptions> enum_schema() {
  return {"recompute", "What is recomputed.", {{"mode", &EnumOptions::mode, "Which.", kModeNames, {"kind"}}}};
}

TEST(Schema, SpellsAnEnumAsOneOfItsWords) {
  const Entry entry = enum_schema().section().entries.front();
  EXPECT_EQ(to_toml(entry.default_value), "\"full\"");
  EXPECT_EQ(entry.check.allowed(), "one of none, full, budget");
  EXPECT_EQ(entry.aliases, std::vector<std::string>{"kind"});
  Recipe recipe = Recipe::parse("[recompute]\nkind = \"budget\"\n", "r.toml");
  EXPECT_EQ(recipe.read(enum_schema()).mode, Mode::budget);
  EXPECT_EQ(recipe.resolved_toml(), "[recompute]\nmode = \"budget\"  # r.toml:2\n");
  EXPECT_EQ(Recipe().read(enum_schema(), {.mode = Mode::none}).mode, Mode::none);
}

TEST(Schema, RefusesAWordThatAnEnumLacksWithTheNearest) {
  Recipe recipe = Recipe::parse("[recompute]\nmode = \"bugdet\"\n", "r.toml");
  EXPECT_EQ(message_of([&] { recipe.read(enum_schema()); }),
            "recompute.mode = \"bugdet\": must be one of none, full, budget; did you mean \"budget\"? (r.toml:2)");
}

TEST(EnumNames, ReadsBackEveryWordAndRefusesOthers) {
  for (const EnumName<Mode>& one : kModeNames) EXPECT_EQ(parse_enum(kModeNames, "mode", enum_name(kModeNames, one.value)), one.value);
  EXPECT_EQ(message_of([] { parse_enum(kModeNames, "mode", "fulll"); }), "unknown mode \"fulll\": did you mean \"full\"?");
  EXPECT_EQ(enum_words(kModeNames), (std::vector<std::string>{"none", "full", "budget"}));
}

enum class Speed { equal, own };
constexpr EnumName<Speed> kSpeedNames[] = {{Speed::equal, "equal", "same"}, {Speed::own, "own"}};
struct SpeedOptions {
  Speed speed = Speed::own;
};
Schema<SpeedOptions> speed_schema() { return {"island", "Islands.", {{"speed", &SpeedOptions::speed, "Which.", kSpeedNames}}}; }

TEST(EnumNames, ReadAnOldWordAndWriteThePresentOne) {
  EXPECT_EQ(parse_enum(kSpeedNames, "speed", "same"), Speed::equal);
  EXPECT_STREQ(enum_name(kSpeedNames, Speed::equal), "equal");
  EXPECT_EQ(enum_words(kSpeedNames), (std::vector<std::string>{"equal", "own"}));
  EXPECT_EQ(speed_schema().section().entries.front().check.allowed(), "one of equal, own");
}

TEST(EnumNames, GiveAHintForAnOldWordOfARecipe) {
  Recipe recipe = Recipe::parse("[island]\nspeed = \"same\"\n", "r.toml");
  EXPECT_EQ(recipe.read(speed_schema()).speed, Speed::equal);
  EXPECT_EQ(recipe.hints({speed_schema().section()}),
            std::vector<std::string>{"r.toml:2: island.speed = \"same\" is now \"equal\"; the old word still works"});
  EXPECT_EQ(recipe.resolved_toml(), "[island]\nspeed = \"equal\"  # r.toml:2\n");
}

TEST(EnumNames, ReadBooleansOfAKeyThatWasOne) {
  static constexpr EnumName<Speed> kWords[] = {{Speed::equal, "on", "true"}, {Speed::own, "own"}};
  const Schema<SpeedOptions> schema("island", "", {{"speed", &SpeedOptions::speed, "", kWords}});
  Recipe recipe = Recipe::parse("[island]\nspeed = true\n", "r.toml");
  EXPECT_EQ(recipe.read(schema).speed, Speed::equal);
  EXPECT_EQ(recipe.hints({schema.section()}),
            std::vector<std::string>{"r.toml:2: island.speed = \"true\" is now \"on\"; the old word still works"});
  EXPECT_EQ(recipe.resolved_toml(), "[island]\nspeed = \"on\"  # r.toml:2\n");
  Recipe other = Recipe::parse("[island]\nspeed = false\n", "r.toml");
  EXPECT_EQ(message_of([&] { other.read(schema); }), "island.speed = false: must be a string (r.toml:2)");
}

TEST(Schema, RefusesAnOldWordThatIsInUse) {
  static constexpr EnumName<Speed> kClash[] = {{Speed::equal, "equal", "own"}, {Speed::own, "own"}};
  EXPECT_NE(message_of([] {
              Schema<SpeedOptions>("s", "", {{"speed", &SpeedOptions::speed, "", kClash}});
            }).find("schema s: speed: \"own\" cannot be the old word for \"equal\""),
            std::string::npos);
}

TEST(Schema, MovesToAnotherSection) { EXPECT_EQ(schema().in("sync.dp").section().name, "sync.dp"); }

TEST(Check, HoldsAtItsEdges) {
  EXPECT_TRUE(at_least(1).holds(int64_t{1}));
  EXPECT_FALSE(at_least(1).holds(int64_t{0}));
  EXPECT_FALSE(more_than(0).holds(0.0));
  EXPECT_TRUE(more_than(0).holds(std::numeric_limits<double>::denorm_min()));
  EXPECT_TRUE(between(0, 2).holds(2.0));
  EXPECT_FALSE(between(0, 2).holds(std::nextafter(2.0, 3.0)));
  EXPECT_FALSE(any().holds(std::nan("")));
  EXPECT_FALSE(between(0, 2).holds(std::nan("")));
  EXPECT_TRUE(at_least(0).holds(std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(one_of({"a", "b"}).holds(std::string("A")));
  EXPECT_TRUE(one_of({"a", "b"}).holds(std::vector<std::string>{"b", "a"}));
  EXPECT_FALSE(one_of({"a", "b"}).holds(std::vector<std::string>{"b", "c"}));
  EXPECT_FALSE(at_least(1).holds(std::vector<int64_t>{3, 0}));
  EXPECT_TRUE(at_least(1).holds(std::vector<double>{}));
}

struct One {
  int64_t a = 0;
  bool b = false;
};

TEST(Schema, RefusesToContradictItself) {
  const auto with = [](std::vector<Key<One>> keys) { return message_of([&] { Schema<One>("s", "", keys); }); };
  EXPECT_NE(with({{"a", &One::a, "", at_least(1)}}).find("schema s: the default a = 0 is not at least 1"), std::string::npos);
  EXPECT_NE(with({{"a", &One::a, ""}, {"a", &One::b, ""}}).find("schema s: a twice"), std::string::npos);
  EXPECT_NE(with({{"a", &One::a, ""}, {"b", &One::b, "", any(), {"a"}}}).find("schema s: alias a twice"), std::string::npos);
  EXPECT_NE(with({{"a", &One::a, ""}, {"b", &One::b, "", any(), {}, {"a"}}}).find("schema s: old name a twice"), std::string::npos);
  EXPECT_NE(with({{"b", &One::b, "", at_least(0)}}).find("b is a boolean, which cannot be \"at least 0\""), std::string::npos);
  EXPECT_NE(with({{"A.b", &One::a, ""}}).find("key \"A.b\" must be lower-case"), std::string::npos);
}

TEST(Check, TellsPathsFromWords) {
  EXPECT_TRUE(is_path(path(), "texts/a.txt"));
  EXPECT_FALSE(is_path(path(), ""));
  EXPECT_FALSE(is_path(any(), "texts/a.txt"));
  EXPECT_TRUE(is_path(path_or_word(".jinja"), "my.jinja"));
  EXPECT_FALSE(is_path(path_or_word(".jinja"), "chatml"));
  EXPECT_TRUE(is_path(may_change(path()), "a"));
  EXPECT_TRUE(may_change(at_least(1)).may_change && may_change(at_least(1)).holds(int64_t{1}) &&
              !may_change(at_least(1)).holds(int64_t{0}));
  EXPECT_TRUE(path().holds(std::string("anything")));
}

TEST(ToToml, IsTomlThatKeepsTheType) {
  EXPECT_EQ(to_toml(Setting(true)), "true");
  EXPECT_EQ(to_toml(Setting(int64_t{-3})), "-3");
  EXPECT_EQ(to_toml(Setting(1.0)), "1.0");
  EXPECT_EQ(to_toml(Setting(1e300)), "1e+300");
  EXPECT_EQ(to_toml(Setting(0.1)), "0.1");
  EXPECT_EQ(to_toml(Setting(-std::numeric_limits<double>::infinity())), "-inf");
  EXPECT_EQ(to_toml(Setting(std::string("a\"\\\n\x01"))), "\"a\\\"\\\\\\n\\u0001\"");
  EXPECT_EQ(to_toml(Setting(std::vector<std::string>{"a", "b"})), "[\"a\", \"b\"]");
  EXPECT_EQ(to_toml(Setting(std::vector<double>{1, 2.5})), "[1.0, 2.5]");
  EXPECT_EQ(to_toml(Setting(std::vector<int64_t>{})), "[]");
}

TEST(ReferenceMarkdown, ListsEveryKeyWithTypeDefaultRangeAndMeaning) {
  const std::string page = reference_markdown({schema().section()});
  EXPECT_TRUE(page.starts_with("## `[train]`\n\nWhat the loop does.\n\n- `")) << page;
  EXPECT_NE(page.find("- `steps`: integer, default `100`, at least 1. Optimizer steps. Also written `max_steps`, `iterations`.\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("- `precision`: string, default `\"fp32\"`, one of fp32, bf16. Number format.\n"), std::string::npos) << page;
  EXPECT_NE(page.find("- `files`: list of strings, default `[\"a|b\"]`. Text files.\n"), std::string::npos) << page;
  EXPECT_NE(page.find("- `rate`: number, default `0.7`, between 0 and 2. Step size.\n"), std::string::npos) << page;
}

TEST(ReferenceMarkdown, WrapsLongLines) {
  std::string help;
  for (int i = 0; i < 60; ++i) help += "rate - 1. of `a code span` ";
  const std::string page = reference_markdown({Section{"s", help, {Entry{"a", int64_t{0}, help, any(), {}}}}});
  std::istringstream lines(page);
  int items = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 118u) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '`') % 2, 0) << "a code span is broken: " << line;
    const bool item = line.starts_with("- ");
    items += item;
    EXPECT_TRUE(items == 0 || item || line.empty() || line.starts_with("  ")) << line;
    EXPECT_FALSE(line.starts_with("  - ") || line.starts_with("1. ") || line.starts_with("  1. ")) << "a list in the paragraph: " << line;
  }
  EXPECT_EQ(items, 1);
}

TEST(ReferenceMarkdown, LeavesOutOldNames) {
  const Schema<One> keys("s", "All.", {{"a", &One::a, "A.", any(), {"same"}, {"old"}}});
  EXPECT_EQ(reference_markdown({keys.section()}), "## `[s]`\n\nAll.\n\n- `a`: integer, default `0`. A. Also written `same`.\n\n");
}

}  // namespace
}  // namespace cairn::base
