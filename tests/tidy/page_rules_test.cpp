// Each rule about pages catches a bad example and lets a good one pass.
#include "tidy/page_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::tidy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string words(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += i % 10 == 9 ? "word\n" : "word ";
  return text + "\n";
}

TEST(Pages, AreAtMost120ColumnsWide) {
  EXPECT_THAT(keeps_pages_narrow({"docs/guides/x.md", "short\n" + std::string(121, 'x') + "\n"}),
              ElementsAre(HasSubstr("x.md:2: 121 columns")));
  EXPECT_THAT(keeps_pages_narrow({"docs/guides/x.md", std::string(120, 'x')}), IsEmpty());
  EXPECT_THAT(keeps_pages_narrow({"README.md", std::string(121, 'x')}), ElementsAre(HasSubstr("README.md:1:")));
  std::string umlauts;
  for (int i = 0; i < 120; ++i) umlauts += "\xC3\xA4";
  EXPECT_THAT(keeps_pages_narrow({"docs/x.md", umlauts}), IsEmpty());
  EXPECT_THAT(keeps_pages_narrow({"docs/measurements/x.md", std::string(300, 'x')}), IsEmpty());
  EXPECT_THAT(keeps_pages_narrow({"src/x/y.cpp", std::string(300, 'x')}), IsEmpty());
}

TEST(Pages, HaveParagraphsOfAtMost90Words) {
  EXPECT_THAT(keeps_paragraphs_short({"docs/x.md", "# Title\n\n" + words(91)}), ElementsAre(HasSubstr("x.md:3: a paragraph of 91 words")));
  EXPECT_THAT(keeps_paragraphs_short({"docs/x.md", words(90)}), IsEmpty());
  EXPECT_THAT(keeps_paragraphs_short({"docs/x.md", words(60) + "\n" + words(60)}), IsEmpty());
  EXPECT_THAT(keeps_paragraphs_short({"docs/x.md", "- " + words(60) + "- " + words(60) + "1. " + words(60)}), IsEmpty());
  EXPECT_THAT(keeps_paragraphs_short({"docs/x.md", "- " + words(95)}), ElementsAre(HasSubstr("96 words")));
  EXPECT_THAT(keeps_paragraphs_short({"docs/x.md", "```\n" + words(200) + "```\n"}), IsEmpty());
}

}  // namespace
}  // namespace cairn::tidy
