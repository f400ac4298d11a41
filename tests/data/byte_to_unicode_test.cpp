#include "data/tokenizer/byte_to_unicode.h"

#include <set>

#include <gtest/gtest.h>

namespace cairn::data {
namespace {

TEST(ByteToUnicode, WriteSpacesAndLineBreaksAsGpt2Does) {
  EXPECT_EQ(bytes_to_unicode(" a"), "\u0120a");
  EXPECT_EQ(bytes_to_unicode("\n\t"), "\u010a\u0109");
  EXPECT_EQ(bytes_to_unicode(std::string_view("\0\xad\x7f", 3)), "\u0100\u0143\u0121");
  EXPECT_EQ(bytes_to_unicode("\xc3\xa9"), "\u00c3\u00a9");
}

TEST(ByteToUnicode, GiveEachByteALetterOfItsOwnAndComeBack) {
  std::set<std::string> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string raw(1, static_cast<char>(byte));
    characters.insert(bytes_to_unicode(raw));
    EXPECT_EQ(unicode_to_bytes(bytes_to_unicode(raw)), raw);
  }
  EXPECT_EQ(characters.size(), 256u);
}

TEST(ByteToUnicode, KnowNothingOfLettersOutsideTheTable) {
  for (const char* wrong : {" ", "\u0144", "\u20ac", "\xc4", "\xc4x", "\x80"}) EXPECT_EQ(unicode_to_bytes(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace cairn::data
