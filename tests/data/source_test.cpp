#include "data/source.h"

#include <gtest/gtest.h>

#include "data/stories.h"
#include "scratch.h"

namespace cairn::data {
namespace {

std::vector<std::string> read(const std::string& bytes) {
  const Scratch scratch;
  const Documents documents = read_text(scratch.write("text.txt", bytes));
  std::vector<std::string> texts;
  for (int64_t i = 0; i < documents.size(); ++i) texts.emplace_back(documents[i]);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(TextSource, TakesAFileWithoutMarkersAsOneDocument) { EXPECT_EQ(read("\none\n\ntwo\n"), Texts{"\none\n\ntwo\n"}); }

TEST(TextSource, CutsAtMarkersAndDropsLineBreaksAroundThem) {
  EXPECT_EQ(read("\none\n<|endoftext|>\ntwo\nlines\r\n<|endoftext|>"), (Texts{"\none", "two\nlines"}));
  EXPECT_EQ(read("<|endoftext|><|endoftext|>\n\n<|endoftext|> x<|endoftext|>y\n"), (Texts{" x", "y\n"}));
}

TEST(TextSource, AcceptsUtf8AndAFewWrongBytes) {
  const std::string german =
      "Gr\xc3\xbc\xc3\x9f"
      "e \xe2\x82\xac \xf0\x9f\x8c\x8d";
  EXPECT_EQ(read(german), Texts{german});
  const std::string old_encoding =
      "Gr\xfc\xdf"
      "e aus der alten Zeit, lange vor Unicode";
  EXPECT_EQ(read(old_encoding), Texts{old_encoding});
}

TEST(TextSource, RefusesEachFileThatIsNoText) {
  const Scratch scratch;
  const auto says = [&](const std::string& path) { return refusal([&] { read_text(path); }); };
  const std::string missing = scratch.path("missing.txt");
  EXPECT_EQ(says(missing),
            "data.path = " + missing + ": no such file; give the path of a text file, or no data.path for the built-in stories");
  EXPECT_EQ(says(scratch.path()), "data.path = " + scratch.path() + ": a folder; give the path of one text file");
  const std::string empty = scratch.write("empty.txt", "");
  EXPECT_EQ(says(empty), "data.path = " + empty + ": the file is empty; give a text file, or no data.path for the built-in stories");
  const std::string nul = scratch.write("nul.bin", std::string("ELF\x02\0abc", 8));
  EXPECT_EQ(says(nul), "data.path = " + nul + ": a binary file (a NUL byte at offset 4); give a plain UTF-8 text file");
  const std::string noise = scratch.write("noise.bin", "ab\xff\xfe\x80\xc0\xaf\xed\xa0\x80\xf5\x80\x80\x80");
  EXPECT_EQ(says(noise),
            "data.path = " + noise + ": a binary file (86 % of it is not UTF-8, first at offset 2); give a plain UTF-8 text file");
  const std::string markers = scratch.write("markers.txt", "<|endoftext|>\n<|endoftext|>");
  EXPECT_EQ(says(markers), "data.path = " + markers + ": nothing but <|endoftext|> markers; give a file with text in it");
}

TEST(TellStories, GivesOneDocumentPerStoryAndEnoughOfThem) {
  const Documents documents = tell_stories(9, 5000);
  EXPECT_GE(documents.text.size(), 5000u);
  EXPECT_LT(documents.text.size(), 6500u);
  for (const int64_t i : {int64_t{0}, int64_t{1}, documents.size() - 1}) EXPECT_EQ(documents[i], stories(9, i, 1));
}

}  // namespace
}  // namespace cairn::data
