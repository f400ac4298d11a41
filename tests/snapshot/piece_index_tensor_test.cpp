// training/pieces.json from outside is not trusted.
#include "snapshot/piece_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_piece_index(text, "dir/pieces.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::corrupt_file) << text;
    EXPECT_THAT(error.what(), HasSubstr("dir/pieces.json")) << text;
    return error.what();
  }
  ADD_FAILURE() << "taken: " << text.substr(0, 300);
  return {};
}

// One tensor of 4 x 6 in the section "optimizer".
std::string index_of(const std::string& pieces, const std::string& shape = "[4,6]") {
  return R"({"optimizer":[{"name":"a","dtype":"F32","shape":)" + shape + R"(,"pieces":[)" + pieces + "]}]}";
}

std::string piece(const std::string& dims, const std::string& elements, const std::string& file = "training/rank-00000.safetensors") {
  return R"({"file":")" + file + R"(","name":"n","dims":)" + dims + R"(,"elements":)" + elements + "}";
}

TEST(PieceIndex, TakesColumnsRowsAndFlatRanges) {
  const std::string text = index_of(piece("[[[0,4]],[[0,3]]]", "[0,7]") + "," + piece("[[[0,4]],[[0,3]]]", "[7,12]") + "," +
                                    piece("[[[0,1],[1,4]],[[3,6]]]", "[0,12]"));
  const PieceIndex found = parse_piece_index(text, "i");
  EXPECT_EQ(found.at("optimizer").at(0).pieces.size(), 3u);
  EXPECT_EQ(parse_piece_index(format_piece_index(found), "i"), found);
  EXPECT_NO_THROW(parse_piece_index(index_of(piece("[[[0,0]],[[0,6]]]", "[0,0]"), "[0,6]"), "i"));
  EXPECT_NO_THROW(parse_piece_index(index_of(piece("[]", "[0,1]"), "[]"), "i"));
}

TEST(PieceIndex, RefusesHolesAndOverlaps) {
  const std::string left = piece("[[[0,4]],[[0,3]]]", "[0,12]");
  EXPECT_THAT(refusal(index_of(left)), HasSubstr("its pieces have 12 of 24 elements"));
  EXPECT_THAT(refusal(index_of(left + "," + left)), HasSubstr("overlap"));
  EXPECT_THAT(refusal(index_of(piece("[[[0,2],[0,2]],[[0,6]]]", "[0,24]"))), HasSubstr("overlap"));
  EXPECT_THAT(refusal(index_of("")), HasSubstr("0 of 24"));
}

TEST(PieceIndex, RefusesWhatPointsElsewhere) {
  const char* all = "[[[0,4]],[[0,6]]]";
  for (const char* file : {"../up.safetensors", "model.safetensors", "training/rank-0.json", "training/state.json", "/etc/passwd"})
    EXPECT_THAT(refusal(index_of(piece(all, "[0,24]", file))), HasSubstr("no file of a snapshot")) << file;
  EXPECT_THAT(refusal(index_of(piece(all, "[0,25]"))), HasSubstr("0 to 25, of 24"));
  EXPECT_THAT(refusal(index_of(piece(all, "[9,3]"))), HasSubstr("9 to 3"));
  EXPECT_THAT(refusal(index_of(piece("[[[0,4]],[[0,7]]]", "[0,24]"))), HasSubstr("0 to 7, of 6"));
  EXPECT_THAT(refusal(index_of(piece("[[[0,4]]]", "[0,4]"))), HasSubstr("another shape"));
}

TEST(PieceIndex, RefusesWhatIsNoIndex) {
  for (const char* text :
       {"", "[]", "{", R"({"optimizer":{}})", R"({"../up":[]})", R"({"optimizer":[7]})",
        R"({"optimizer":[{"name":"a","dtype":"F32","shape":5,"pieces":[]}]})",
        R"({"optimizer":[{"name":"a","dtype":"PICKLE","shape":[1],"pieces":[]}]})",
        R"({"optimizer":[{"name":"a","dtype":"F32","shape":[-1],"pieces":[]}]})",
        R"({"optimizer":[{"name":"a","dtype":"F32","shape":[72057594037927936,72057594037927936],"pieces":[]}]})",
        R"({"optimizer":[{"name":"a","dtype":"F32","shape":[0,72057594037927936,72057594037927936],"pieces":[]}]})",
        R"({"optimizer":[{"name":"a","dtype":"F32","shape":[0],"pieces":[]},{"name":"a","dtype":"F32","shape":[0],"pieces":[]}]})"})
    refusal(text);
}

// Intervals multiply: a short text must not become boxes without end.
TEST(PieceIndex, RefusesMoreBoxesThanAnyLayoutHas) {
  std::string dim;
  for (int i = 0; i < 1000; ++i) dim += (i ? ",[" : "[") + std::to_string(i) + "," + std::to_string(i + 1) + "]";
  const std::string dims = "[[" + dim + "],[" + dim + "],[" + dim + "]]";
  EXPECT_THAT(refusal(index_of(piece(dims, "[0,1000000000]"), "[1000,1000,1000]")), HasSubstr("boxes"));
}

}  // namespace
}  // namespace cairn::snapshot
