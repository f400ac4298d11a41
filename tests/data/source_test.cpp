#include "data/corpus/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/options.h"
#include "data/stories/stories.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TellStories, GivesOneDocumentPerStoryAndEnoughOfThem) {
  const Documents documents = generate_stories(9, 5000);
  EXPECT_GE(documents.text.size(), 5000u);
  EXPECT_LT(documents.text.size(), 6500u);
  for (const int64_t i : {int64_t{0}, int64_t{1}, documents.size() - 1}) EXPECT_EQ(documents[i], stories(9, i, 1));
}

TEST(Sources, AreTheStoriesAPathOrAMixture) {
  const Scratch scratch;
  DataOptions data;
  data.stories_bytes = 1000;
  EXPECT_EQ(find_sources(data).at(0).origin, "the built-in stories");
  EXPECT_TRUE(find_sources(data).at(0).holds_text());
  data.path = scratch.write("a.txt", "a text");
  ASSERT_EQ(find_sources(data).size(), 1u);
  EXPECT_EQ(find_sources(data)[0].origin, "data.path = " + data.path);
  EXPECT_EQ(find_sources(data)[0].bytes(), 6);
  data.sources = {data.path, scratch.write("b.jsonl", "{}")};
  EXPECT_EQ(refusal([&] { find_sources(data); }),
            "data.path = " + data.path + " and data.sources are both given: put the path among the sources");
  data.path.clear();
  EXPECT_EQ(find_sources(data).at(1).origin, "data.sources[1] = " + data.sources[1]);
  data.weights = {1};
  EXPECT_EQ(refusal([&] { find_sources(data); }), "data.weights has 1 numbers for 2 sources: give one for each of data.sources, or none");
}

TEST(Sources, OfPreferencesMustBeGiven) {
  DataOptions data;
  data.kind = "preference";
  EXPECT_EQ(refusal([&] { find_sources(data); }),
            "data.kind = preference: set data.path to a file of records with \"chosen\" and \"rejected\"");
}

}  // namespace
}  // namespace cairn::data
