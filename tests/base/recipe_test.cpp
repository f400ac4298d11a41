#include "base/recipe.h"

#include <cmath>

#include <gtest/gtest.h>

#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

struct Train {
  int64_t steps = 100;
  double rate = 0.7;
  std::string precision = "fp32";
  bool shuffle = true;
  std::vector<std::string> files;
  std::vector<int64_t> sizes = {1};
  std::vector<double> weights;
};
Schema<Train> train_schema() {
  using O = Train;
  return {"train",
          "The loop.",
          {{"steps", &O::steps, "Steps.", at_least(1), {"max_steps"}},
           {"rate", &O::rate, "Rate.", between(0, 2), {}, {"speed"}},
           {"precision", &O::precision, "Format.", one_of({"fp32", "bf16"})},
           {"shuffle", &O::shuffle, "Mix."},
           {"files", &O::files, "Files."},
           {"sizes", &O::sizes, "Sizes."},
           {"weights", &O::weights, "Weights."}}};
}

struct Sync {
  std::string kind = "all_reduce";
};
Schema<Sync> sync_schema() { return {"sync.dp", "How replicas agree.", {{"kind", &Sync::kind, "The rule."}}}; }

struct Diloco {
  int64_t inner_steps = 100;
};
Schema<Diloco> diloco_schema() {
  return {"sync.diloco", "Local steps.", {{"inner_steps", &Diloco::inner_steps, "Between outer steps.", at_least(1)}}};
}

Train read(const std::string& text) {
  Recipe recipe = Recipe::parse(text, "tiny.toml");
  return recipe.read(train_schema());
}
std::string refusal(const std::string& text) {
  return message_of([&] { read(text); });
}
std::string unused(const std::string& text) {
  return message_of([&] {
    Recipe recipe = Recipe::parse(text, "tiny.toml");
    recipe.read(train_schema());
    recipe.read(sync_schema());
    recipe.check_all_used();
  });
}

TEST(Recipe, FillsTheStructAndLeavesDefaults) {
  const Train train =
      read("[train]\nsteps = 7\nprecision = 'bf16'\nshuffle = false\nfiles = ['a', 'b']\nsizes = [3, 4]\nweights = [1, 2.5]\n");
  EXPECT_EQ(train.steps, 7);
  EXPECT_EQ(train.rate, 0.7);
  EXPECT_EQ(train.precision, "bf16");
  EXPECT_FALSE(train.shuffle);
  EXPECT_EQ(train.files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(train.sizes, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(train.weights, (std::vector<double>{1, 2.5}));
}

TEST(Recipe, TakesOtherDefaultsFromTheCaller) {
  Recipe recipe = Recipe::parse("train.rate = 1", "tiny.toml");
  Train smaller;
  smaller.steps = 5;
  const Train train = recipe.read(train_schema(), smaller);
  EXPECT_EQ(train.steps, 5);
  EXPECT_EQ(train.rate, 1.0);
}

TEST(Recipe, ConvertsOnlyWhereNothingIsLost) {
  EXPECT_EQ(read("train.rate = 2").rate, 2.0);
  EXPECT_EQ(read("train.steps = 1e6").steps, 1'000'000);
  EXPECT_EQ(read("train.sizes = []").sizes, std::vector<int64_t>{});
  EXPECT_EQ(read("train.weights = [1, 2]").weights, (std::vector<double>{1, 2}));
  EXPECT_EQ(refusal("train.steps = 1.5"), "train.steps = 1.5: must be an integer (tiny.toml:1)");
  EXPECT_EQ(refusal("train.steps = 1e300"), "train.steps = 1e+300: must be an integer (tiny.toml:1)");
  EXPECT_EQ(refusal("train.steps = inf"), "train.steps = inf: must be an integer (tiny.toml:1)");
}

TEST(Recipe, NamesKeyFoundExpectedAndPlaceOfAWrongType) {
  EXPECT_EQ(refusal("[train]\n\nsteps = 'many'"), "train.steps = \"many\": must be an integer (tiny.toml:3)");
  EXPECT_EQ(refusal("train.shuffle = 1"), "train.shuffle = 1: must be a boolean (tiny.toml:1)");
  EXPECT_EQ(refusal("train.precision = 16"), "train.precision = 16: must be a string (tiny.toml:1)");
  EXPECT_EQ(refusal("train.files = 'a'"), "train.files = \"a\": must be a list of strings (tiny.toml:1)");
  EXPECT_EQ(refusal("train.files = [1, 'a']"), "train.files is a list of unlike things: must be a list of strings (tiny.toml:1)");
  EXPECT_EQ(refusal("train.files = [['a']]"), "train.files is a list of lists: must be a list of strings (tiny.toml:1)");
  EXPECT_EQ(refusal("train.steps = 1979-05-27"), "train.steps is a date: must be an integer (tiny.toml:1)");
  EXPECT_EQ(refusal("[train.steps]\nx = 1"), "train.steps is a table: must be an integer (tiny.toml:1)");
  EXPECT_EQ(refusal("[[train.files]]\nx = 1"), "train.files is a list of tables: must be a list of strings (tiny.toml:1)");
}

TEST(Recipe, NamesWhatIsAllowedOfAWrongValue) {
  EXPECT_EQ(refusal("[train]\nsteps = 0"), "train.steps = 0: must be at least 1 (tiny.toml:2)");
  EXPECT_EQ(refusal("train.rate = 2.5"), "train.rate = 2.5: must be between 0 and 2 (tiny.toml:1)");
  EXPECT_EQ(refusal("train.rate = nan"), "train.rate = nan: must be between 0 and 2 (tiny.toml:1)");
  EXPECT_EQ(refusal("train.weights = [nan]"), "train.weights = [nan]: must be a number (tiny.toml:1)");
  EXPECT_EQ(refusal("train.precision = 'bf61'"),
            "train.precision = \"bf61\": must be one of fp32, bf16; did you mean \"bf16\"? (tiny.toml:1)");
  EXPECT_EQ(error_of([] { read("train.steps = 0"); }).exit_code(), 2);
}

TEST(Recipe, NamesPlaceOfBadSyntax) {
  const std::string message = message_of([] { Recipe::parse("[train]\nsteps = = 3\n", "tiny.toml"); });
  EXPECT_TRUE(message.starts_with("tiny.toml:2:9: not valid TOML: ")) << message;
  EXPECT_TRUE(message_of([] { Recipe::parse("a = 1\na = 2\n", "t.toml"); }).starts_with("t.toml:2:"));
  EXPECT_TRUE(message_of([] { Recipe::parse("a = \"\xff\xfe\"", "t.toml"); }).starts_with("t.toml:1:"));
  EXPECT_EQ(error_of([] { Recipe::parse(std::string("\0\x01\x02", 3), "t.toml"); }).kind(), Error::Kind::bad_input);
  EXPECT_EQ(error_of([] { Recipe::parse("a = " + std::string(100'000, '['), "t.toml"); }).kind(), Error::Kind::bad_input);
  EXPECT_EQ(message_of([] { Recipe::parse("\"a b\" = 1", "t.toml"); }), "recipe key \"a b\" (t.toml:1): keys are letters, digits, _ and -");
}

TEST(Recipe, RefusesKeysThatNestWithoutEnd) {
  std::string dots;
  for (int i = 0; i < 100'000; ++i) dots += "a.";
  for (const std::string& deep : {dots + "a = 1", "[" + dots + "a]", "x = {" + dots + "a = 1}", "'a'. " + dots + "a = 1"}) {
    const Error error = error_of([&] { Recipe::parse("\n" + deep, "deep.toml"); });
    EXPECT_STREQ(error.what(), "deep.toml:2: a key with more than 32 dots: no recipe has one");
  }
  EXPECT_NO_THROW(Recipe::parse("a = \"................................................\" # ................................\n", "x.toml"));
  EXPECT_NO_THROW(Recipe::parse("a = \"\"\"\n................................................\n\"\"\"\nb = 1\n", "x.toml"));
}

TEST(Recipe, SpeaksOfDepthWithoutTheParsersWords) {
  const Error error = error_of([&] { Recipe::parse("a = " + std::string(1000, '['), "deep.toml"); });
  EXPECT_NE(std::string(error.what()).find("lie too deep within one another"), std::string::npos) << error.what();
}

TEST(RecipeSet, TakesAValueOfManyDotsForAString) {
  Recipe recipe;
  std::string dots;
  for (int i = 0; i < 10'000; ++i) dots += "a.";
  EXPECT_NO_THROW(recipe.set("train.precision={" + dots + "a=1}"));
}

TEST(Recipe, RefusesAnUnknownKeyWithTheNearest) {
  EXPECT_EQ(unused("[train]\nsteps = 3\nstepz = 4"), "unknown key `train.stepz` (tiny.toml:3): did you mean `train.steps`?");
  EXPECT_EQ(unused("train.kind = 'x'"), "unknown key `train.kind` (tiny.toml:1): did you mean `sync.dp.kind`?");
  EXPECT_EQ(unused("train.bananas = 1"),
            "unknown key `train.bananas` (tiny.toml:1): `train` has steps, rate, precision, shuffle, files, sizes, weights");
  EXPECT_EQ(unused("[trian]\nsteps = 3"), "unknown section `trian` (tiny.toml:1): did you mean `train`?");
  EXPECT_EQ(unused("[trian]"), "unknown section `trian` (tiny.toml:1): did you mean `train`?");
  EXPECT_EQ(unused("[zzzzz]"), "unknown section `zzzzz` (tiny.toml:1): known are sync, sync.dp, train");
  EXPECT_EQ(unused("steps = 3"), "unknown key `steps` (tiny.toml:1): did you mean `train.steps`?");
  EXPECT_EQ(unused("train = 3"), "`train` is a section, not a value (tiny.toml:1): write train.KEY = ...");
  EXPECT_EQ(unused("[sync.dq]"), "unknown section `sync.dq` (tiny.toml:1): did you mean `sync.dp`?");
}

TEST(Recipe, FindsAKeyOfAnotherNameByTheWordThatItTakes) {
  EXPECT_EQ(unused("train.step = 'bf16'"), "unknown key `train.step` (tiny.toml:1): did you mean `train.precision`, which takes \"bf16\"?");
  EXPECT_EQ(unused("train.step = 'bf61'"), "unknown key `train.step` (tiny.toml:1): did you mean `train.steps`?");
  EXPECT_EQ(unused("train.precisian = 'bf16'"), "unknown key `train.precisian` (tiny.toml:1): did you mean `train.precision`?");
}

TEST(Recipe, RefusesAnUnknownKeyOfTheCommandLine) {
  EXPECT_EQ(message_of([] {
              Recipe recipe;
              recipe.set("trian.steps=3");
              recipe.read(train_schema());
              recipe.check_all_used();
            }),
            "unknown section `trian` in `trian.steps` (--set): did you mean `train`?");
}

TEST(Recipe, AcceptsKnownSectionsThatNobodyRead) {
  Recipe recipe = Recipe::parse("train.max_steps = 3\n[sync.dp]\nkind = 'x'", "tiny.toml");
  EXPECT_THROW(recipe.check_all_used(), Error);
  EXPECT_NO_THROW(recipe.check_all_used({train_schema().section(), sync_schema().section()}));
}

TEST(Recipe, ReadsTwoSchemasFromOneSection) {
  Recipe recipe = Recipe::parse("[sync.dp]\nkind = 'diloco'\ninner_steps = 5", "tiny.toml");
  EXPECT_EQ(recipe.read(sync_schema()).kind, "diloco");
  EXPECT_EQ(recipe.read(diloco_schema().in("sync.dp")).inner_steps, 5);
  EXPECT_NO_THROW(recipe.check_all_used());
  EXPECT_EQ(recipe.resolved_toml(), "[sync.dp]\nkind = \"diloco\"  # tiny.toml:2\ninner_steps = 5  # tiny.toml:3\n");
  EXPECT_EQ(message_of([] {
              Recipe bad = Recipe::parse("sync.dp.inner_steps = 0", "tiny.toml");
              bad.read(diloco_schema().in("sync.dp"));
            }),
            "sync.dp.inner_steps = 0: must be at least 1 (tiny.toml:1)");
}

TEST(Recipe, ListsTheTablesOfASection) {
  Recipe recipe = Recipe::parse("[sync.dp]\nkind='x'\n[sync.island]\n", "tiny.toml");
  recipe.set("sync.tp.kind=x");
  EXPECT_EQ(recipe.tables_in("sync"), (std::vector<std::string>{"dp", "island", "tp"}));
  EXPECT_EQ(recipe.tables_in("train"), std::vector<std::string>{});
  EXPECT_EQ(recipe.tables_in(""), std::vector<std::string>{"sync"});
  EXPECT_TRUE(recipe.has("sync.dp.kind"));
  EXPECT_FALSE(recipe.has("sync.dp"));
}

TEST(RecipeSet, ReadsTomlOrElseAString) {
  const auto with = [](const std::string& assignment) {
    Recipe recipe;
    recipe.set(assignment);
    return recipe.read(train_schema());
  };
  EXPECT_EQ(with("train.steps=200").steps, 200);
  EXPECT_EQ(with("train.precision=bf16").precision, "bf16");
  EXPECT_EQ(with("train.precision=\"bf16\"").precision, "bf16");
  EXPECT_EQ(with(" train.steps = 200 ").steps, 200);
  EXPECT_EQ(with("train.shuffle=false").shuffle, false);
  EXPECT_EQ(with("train.files=['a', 'b']").files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(with("train={steps=9, rate=1}").steps, 9);
}

struct Named {
  std::string name;
};
TEST(RecipeSet, KeepsWhatWasTypedForAString) {
  const auto name = [](const std::string& value) {
    Recipe recipe;
    recipe.set("run.name=" + value);
    return recipe.read(Schema<Named>("run", "", {{"name", &Named::name, ""}})).name;
  };
  for (const char* text : {"12", "1e3", "true", "1979-05-27", "/a/b.txt", "a=b", "a#b", "", "[", "x\ny = 2", "nan"})
    EXPECT_EQ(name(text), text);
}

TEST(RecipeSet, WinsOverTheFileUnderAnyName) {
  Recipe recipe = Recipe::parse("train.steps = 5", "tiny.toml");
  recipe.set("train.max_steps=6");
  EXPECT_EQ(recipe.read(train_schema()).steps, 6);
  recipe.set("train.steps=7");
  EXPECT_EQ(recipe.read(train_schema()).steps, 7);
}

TEST(RecipeSet, RefusesWhatIsNoAssignment) {
  Recipe recipe;
  EXPECT_EQ(message_of([&] { recipe.set("train.steps"); }), "--set train.steps: expected KEY=VALUE, like train.steps=200");
  EXPECT_EQ(message_of([&] { recipe.set("=3"); }), "--set =3: \"\" is not a key; expected KEY=VALUE, like train.steps=200");
  EXPECT_EQ(message_of([&] { recipe.set("a..b=3"); }), "--set a..b=3: \"a..b\" is not a key; expected KEY=VALUE, like train.steps=200");
  EXPECT_EQ(message_of([] {
              Recipe other;
              other.set("train.steps=many");
              other.read(train_schema());
            }),
            "train.steps = \"many\": must be an integer (--set)");
}

TEST(Recipe, RefusesAKeyAndItsAliasTogether) {
  EXPECT_EQ(read("train.max_steps = 8").steps, 8);
  EXPECT_EQ(refusal("[train]\nsteps = 1\nmax_steps = 2"),
            "train.steps (tiny.toml:2) and train.max_steps (tiny.toml:3) are the same key: give one of them");
  EXPECT_EQ(refusal("[train]\nmax_steps = 0"), "train.max_steps = 0: must be at least 1 (tiny.toml:2)");
}

TEST(Recipe, TakesAnOldNameWithAHint) {
  Recipe recipe = Recipe::parse("[train]\nspeed = 2", "tiny.toml");
  const std::vector<Section> twice{train_schema().section(), train_schema().section()};
  EXPECT_EQ(recipe.read(train_schema()).rate, 2);
  EXPECT_EQ(recipe.hints(twice), std::vector<std::string>{"tiny.toml:2: train.speed is now train.rate; the old name still works"});
  EXPECT_NO_THROW(recipe.check_all_used());
  EXPECT_NE(recipe.resolved_toml().find("rate = 2.0  # tiny.toml:2\n"), std::string::npos) << recipe.resolved_toml();
  EXPECT_EQ(recipe.resolved_toml().find("speed"), std::string::npos);
}

TEST(Recipe, GivesNoHintForNamesInUse) {
  Recipe recipe = Recipe::parse("[train]\nrate = 1\nmax_steps = 2", "tiny.toml");
  EXPECT_TRUE(recipe.hints({train_schema().section(), sync_schema().section()}).empty());
}

TEST(Recipe, RefusesAKeyAndItsOldNameTogether) {
  EXPECT_EQ(refusal("[train]\nrate = 1\nspeed = 2"),
            "train.rate (tiny.toml:2) and train.speed (tiny.toml:3) are the same key: give one of them");
  EXPECT_EQ(refusal("[train]\nspeed = 3"), "train.speed = 3.0: must be between 0 and 2 (tiny.toml:2)");
}

TEST(RecipeSet, TakesAnOldNameAndThePresentOneInTurn) {
  Recipe recipe = Recipe::parse("train.speed = 1", "tiny.toml");
  recipe.set("train.rate=0.5");
  EXPECT_EQ(recipe.read(train_schema()).rate, 0.5);
  recipe.set("train.speed=0.25");
  EXPECT_EQ(recipe.read(train_schema()).rate, 0.25);
  EXPECT_EQ(recipe.hints({train_schema().section()}),
            std::vector<std::string>{"--set: train.speed is now train.rate; the old name still works"});
}

TEST(Recipe, WritesEveryValueWithItsOrigin) {
  Recipe recipe = Recipe::parse("[train]\nsteps = 3", "tiny.toml");
  recipe.set("train.rate=1");
  recipe.set("train.files", std::vector<std::string>{"a.txt"}, "--data");
  recipe.set("train.precision", "bf16", "--precision");
  recipe.read(train_schema());
  EXPECT_EQ(recipe.resolved_toml(),
            "[train]\nsteps = 3  # tiny.toml:2\nrate = 1.0  # --set\nprecision = \"bf16\"  # --precision\nshuffle = true  # default\n"
            "files = [\"a.txt\"]  # --data\nsizes = [1]  # default\nweights = []  # default\n");
}

TEST(Recipe, ReadsBackWhatItWrote) {
  Recipe recipe;
  recipe.set("train.files", std::vector<std::string>{"a\"b\\\n\t\x01", "\xc3\xa9 # [x]", ""}, "odd\norigin # \"");
  recipe.set("train.weights", std::vector<double>{0.1, 1e-300, 1.7976931348623157e308, 5e-324, -0.0, 3}, "x");
  recipe.set("train.sizes", std::vector<int64_t>{INT64_MIN, INT64_MAX}, "x");
  recipe.set("train.rate", 2.0 / 3, "x");
  const Train first = recipe.read(train_schema());
  const std::string text = recipe.resolved_toml();
  Recipe again = Recipe::parse(text, "recipe.toml");
  const Train second = again.read(train_schema());
  EXPECT_NO_THROW(again.check_all_used());
  EXPECT_EQ(second.files, first.files);
  EXPECT_EQ(second.weights, first.weights);
  EXPECT_TRUE(std::signbit(second.weights[4]));
  EXPECT_EQ(second.sizes, first.sizes);
  EXPECT_EQ(second.rate, 2.0 / 3);
}

TEST(SavedRecipe, KeepsTheOriginsOfItsValues) {
  const std::string text =
      "[train]\nsteps = 3  # tiny.toml:2\nrate = 0.7  # default\nprecision = \"bf16\"  # --set\nshuffle = false  # default\n"
      "files = [\"a  # b\"]  # --data\nsizes = [2]\nweights = []  # default\n";
  Recipe recipe = Recipe::parse_saved({text, "recipe.toml"});
  recipe.set("train.steps=4");
  recipe.read(train_schema());
  EXPECT_EQ(recipe.resolved_toml(),
            "[train]\nsteps = 4  # --set\nrate = 0.7  # default\nprecision = \"bf16\"  # --set\nshuffle = false  # recipe.toml:5\n"
            "files = [\"a  # b\"]  # --data\nsizes = [2]  # recipe.toml:7\nweights = []  # default\n")
      << "an edited default and a line without a comment have the place in the file";
  Recipe wrong = Recipe::parse_saved({"[train]\nsteps = 0  # --set\n", "recipe.toml"});
  EXPECT_EQ(message_of([&] { wrong.read(train_schema()); }), "train.steps = 0: must be at least 1 (recipe.toml:2)");
}

TEST(SavedRecipe, ListsWhatHasChangedSince) {
  Recipe before = Recipe::parse("[train]\nsteps = 3\nfiles = [\"a\"]\n", "tiny.toml"), now = before;
  now.set("train.rate=0.5");
  now.replace_text("train.files", [](const std::string& file) { return "folder/" + file; });
  now.replace_text("train.precision", [](const std::string&) { return "never given"; });
  before.read(train_schema());
  now.read(train_schema());
  const std::vector<Recipe::Change> changes = now.changes_since(before);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].key + " " + changes[0].before + " " + changes[0].now + " " + changes[0].origin, "train.rate 0.7 0.5 --set");
  EXPECT_EQ(changes[1].key + " " + changes[1].before + " " + changes[1].now + " " + changes[1].origin,
            "train.files [\"a\"] [\"folder/a\"] tiny.toml:3");
}

TEST(Recipe, PutsKeysWithoutASectionFirst) {
  Recipe recipe;
  recipe.read(train_schema());
  recipe.read(Schema<Named>("", "", {{"name", &Named::name, ""}}));
  EXPECT_TRUE(recipe.resolved_toml().starts_with("name = \"\"  # default\n\n[train]\n"));
}

TEST(RecipeFile, NamesFileAndLine) {
  const harness::ScratchFolder folder;
  Recipe recipe = Recipe::parse_file(folder.file("tiny.toml", "# a comment\n[train]\nsteps = 0\n"));
  EXPECT_EQ(message_of([&] { recipe.read(train_schema()); }), "train.steps = 0: must be at least 1 (tiny.toml:3)");
  Recipe empty = Recipe::parse_file(folder.file("empty.toml", ""));
  EXPECT_EQ(empty.read(train_schema()).steps, 100);
}

TEST(RecipeFile, IsBadInputWhereItCannotBeRead) {
  const harness::ScratchFolder folder;
  for (const auto& path : {folder / "missing.toml", folder.path(), folder.file("big.toml", std::string((1 << 20) + 1, '#'))}) {
    const Error error = error_of([&] { Recipe::parse_file(path); });
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cairn::base
