// Each rule about words catches a bad example and lets a good one pass.
#include "tidy/word_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::tidy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Words, AreThoseOfTheField) {
  EXPECT_THAT(uses_the_words_of_the_field({"src/x/y.h", "// The company of a rank.\n"}), ElementsAre(HasSubstr("step_group")));
  EXPECT_THAT(uses_the_words_of_the_field({"docs/guides/x.md", "first\nstate is shared out\n"}), ElementsAre(HasSubstr("x.md:2:")));
  EXPECT_THAT(uses_the_words_of_the_field({"src/x/y.cpp", "log(\"products in eight bits\");"}), ElementsAre(HasSubstr("fp8")));
  EXPECT_THAT(uses_the_words_of_the_field({"docs/glossary.md", "company is step_group"}), IsEmpty());
  EXPECT_THAT(uses_the_words_of_the_field({"docs/measurements/x.md", "the same bits"}), IsEmpty());
  EXPECT_THAT(uses_the_words_of_the_field({"src/x/y.cpp", "accompany(); companyName();"}), IsEmpty());
}

TEST(Words, OfOldRecipesStandWhereTheyAreRead) {
  EXPECT_THAT(uses_the_words_of_the_field({"src/sync/options.h", "{Pace::equal, \"equal\", \"alike\"}"}), IsEmpty());
  EXPECT_THAT(uses_the_words_of_the_field({"src/sync/options.h", "// Islands are alike.\n"}), ElementsAre(HasSubstr("identical")));
  EXPECT_THAT(uses_the_words_of_the_field({"src/sync/diloco.cpp", "if (word == \"alike\") return;"}), ElementsAre(HasSubstr("identical")));
}

TEST(Words, OfOrdinaryEnglishAreRefusedAsIdentifiersAlone) {
  EXPECT_THAT(uses_the_words_of_the_field({"src/x/y.cpp", "if (sync.takes(step)) return;"}), ElementsAre(HasSubstr("should_step")));
  EXPECT_THAT(uses_the_words_of_the_field({"src/x/y.cpp", "// It takes a second. \nlog(\"takes long\");"}), IsEmpty());
  EXPECT_THAT(uses_the_words_of_the_field({"docs/x.md", "This takes a minute."}), IsEmpty());
  EXPECT_THAT(uses_the_words_of_the_field({"src/x/y.cpp", "sync->move({}); x = std::move(y);"}), ElementsAre(HasSubstr("progress")));
}

TEST(Methods, AreNamedInTheirRegistryAlone) {
  const auto found = [](const char* path, const char* text) { return names_methods_in_their_registry({path, text}); };
  EXPECT_THAT(found("src/train/build/x.cpp", "if (s.train.method == \"one_byte\") return;"), ElementsAre(HasSubstr("train.method")));
  EXPECT_THAT(found("src/train/build/x.cpp", "if (s.island.kind !=\n    \"diloco\") return;"), ElementsAre(HasSubstr("island.kind")));
  EXPECT_THAT(found("src/cli/x.cpp", "if (\"adamw\" == s.optim.kind) return;"), ElementsAre(HasSubstr("optim.kind")));
  EXPECT_THAT(found("src/train/step_methods.cpp", "return s.train.method == \"masha1\";"), IsEmpty());
  EXPECT_THAT(found("src/train/build/x.cpp", "if (s.sync.kind == options.kind) fail(\"sync.kind == \\\"x\\\"\");"), IsEmpty());
}

}  // namespace
}  // namespace cairn::tidy
