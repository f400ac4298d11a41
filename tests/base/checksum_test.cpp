#include "base/checksum.h"

#include <string>

#include <gtest/gtest.h>

#include "base/files.h"

namespace cairn::base {
namespace {

TEST(Checksum, MatchesThePublishedValues) {
  EXPECT_EQ(checksum(""), 0x2D06800538D394C2u);           // XXH3_64bits of nothing, seed 0, from xxHash's own test table
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xE3069283u);  // the check value of CRC-32C
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(as_bytes(std::string(32, '\0'))), 0x8A9136AAu);  // RFC 3720, B.4
}

TEST(Checksum, OverPiecesIsThatOfTheWhole) {
  std::string text;
  for (int i = 0; i < 3001; ++i) text += static_cast<char>(i * 31);
  for (const size_t piece : {1, 7, 256, 1024, 5000}) {
    Checksum sum;
    for (size_t at = 0; at < text.size(); at += piece) sum.add(as_bytes(std::string_view(text).substr(at, piece)));
    EXPECT_EQ(sum.value(), checksum(text)) << piece;
  }
}

TEST(Checksum, ChangesWithEveryBit) {
  std::string text(100, 'x');
  const uint64_t before = checksum(text);
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(text[i] ^ 1);
    EXPECT_NE(checksum(text), before);
    text[i] = static_cast<char>(text[i] ^ 1);
  }
}

}  // namespace
}  // namespace cairn::base
