#include "data/tokenizer/characters.h"

#include <gtest/gtest.h>

namespace cairn::data {
namespace {

Character only(std::string_view text) {
  const Character c = character_at(text, 0);
  EXPECT_EQ(c.bytes, text.size()) << text;
  return c;
}

TEST(Characters, ReadsOneToFourBytes) {
  EXPECT_EQ(only("a").code, 0x61u);
  EXPECT_EQ(only("\u00e9").code, 0xe9u);
  EXPECT_EQ(only("\u20ac").code, 0x20acu);
  EXPECT_EQ(only("\U0001f44d").code, 0x1f44du);
  EXPECT_EQ(only("\U0010ffff").code, 0x10ffffu);
}

TEST(Characters, TellsLettersNumbersAndSpacesApart) {
  constexpr uint8_t sort = Kind::letter | Kind::number | Kind::space | Kind::other;
  for (const char* letter : {"a", "Z", "\u00e9", "\u017f", "\u65e5", "\uac01", "\u00aa", "\U0001d400"})
    EXPECT_EQ(only(letter).kinds & sort, Kind::letter) << letter;
  for (const char* number : {"0", "\u0663", "\u00bd", "\u2167", "\u00b2", "\U0001d7ce"})
    EXPECT_EQ(only(number).kinds & sort, Kind::number) << number;
  for (const char* space : {" ", "\t", "\n", "\u0085", "\u00a0", "\u1680", "\u2009", "\u2028", "\u3000"})
    EXPECT_EQ(only(space).kinds & sort, Kind::space) << space;
  for (const char* other : {"!", "_", "\x01", "\u200b", "\u180e", "\u0301", "\u20ac", "\U0001f44d", "\U000e0001", "\u0378"})
    EXPECT_EQ(only(other).kinds & sort, Kind::other) << other;
}

TEST(Characters, KnowsWordCharactersAndThoseThatNfcMayChange) {
  for (const char* word : {"a", "_", "7", "\u0301", "\u203f", "\u200d", "\u24b6"}) EXPECT_TRUE(only(word).kinds & Kind::word) << word;
  for (const char* none : {"-", " ", "\u2014", "\u00b2"}) EXPECT_FALSE(only(none).kinds & Kind::word) << none;
  for (const char* nfc_unstable : {"\u0301", "\u212b", "\u1161", "\u0958", "\uf900"})
    EXPECT_TRUE(only(nfc_unstable).kinds & Kind::nfc_unstable) << nfc_unstable;
  for (const char* settled : {"a", "\u00e9", "\uac01", "\u1100", "\u65e5"})
    EXPECT_FALSE(only(settled).kinds & Kind::nfc_unstable) << settled;
}

TEST(Characters, TakesEveryMalformedByteAlone) {
  // A lone continuation, overlong forms, a surrogate, beyond the last character, and cut off ends.
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x91", "\xc3\x28"}) {
    const Character c = character_at(bad, 0);
    EXPECT_EQ(c.code, kNoCharacter) << bad;
    EXPECT_EQ(c.bytes, 1) << bad;
    EXPECT_EQ(c.kinds, Kind::other) << bad;
  }
}

TEST(Characters, ReadsBackwardsWhatItReadsForwards) {
  const std::string text = "a\u00e9\u20ac\U0001f44d\xff\x80z";
  std::vector<uint32_t> forwards, backwards;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) forwards.push_back(character_at(text, at).code);
  for (size_t end = text.size(); end > 0; end -= character_before(text, end).bytes)
    backwards.insert(backwards.begin(), character_before(text, end).code);
  EXPECT_EQ(backwards, forwards);
}

}  // namespace
}  // namespace cairn::data
