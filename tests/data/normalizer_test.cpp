#include "data/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::data {
namespace {

std::string changed(std::string_view text, std::vector<NormalizerStep> normalizers) {
  std::string scratch;
  return std::string(apply_normalizers(text, normalizers, scratch));
}

TEST(Normalize, ComposesAsTheStandardSays) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(to_nfc("\u212b"), "\u00c5");                // a sign that is a letter
  EXPECT_EQ(to_nfc("\u1100\u1161\u11a8"), "\uac01");    // Hangul
  EXPECT_EQ(to_nfc("\uac00\u11a8"), "\uac01");          // a settled character takes a final
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");  // marks are put in order
  EXPECT_EQ(to_nfc("\u1e69"), "\u1e69");
  EXPECT_EQ(to_nfc("s\u0323\u0307"), "\u1e69");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");  // never composed
  EXPECT_EQ(to_nfc("xe\u0301y e\u0301e\u0301 \u0301"), "x\u00e9y \u00e9\u00e9 \u0301");
}

TEST(Normalize, LeavesTextThatIsSettledWhereItIs) {
  const std::string text = "plain \u00e9 \u65e5\u672c";
  std::string scratch = "untouched";
  const std::vector<NormalizerStep> nfc = {{NormalizerStep::Kind::nfc}};
  EXPECT_EQ(apply_normalizers(text, nfc, scratch).data(), text.data());
  EXPECT_EQ(scratch, "untouched");
}

TEST(Normalize, LeavesMalformedBytesAsTheyAre) {
  EXPECT_EQ(to_nfc("\xff"
                   "e\u0301\xc3"),
            "\xff\u00e9\xc3");
  EXPECT_EQ(to_nfc("e\xff\u0301"), "e\xff\u0301");
  EXPECT_EQ(to_nfc("\u0301\xff\u0301"), "\u0301\xff\u0301");
}

TEST(Normalize, HasTheOtherForms) {
  EXPECT_EQ(changed("\u00e9\ufb01", {{NormalizerStep::Kind::nfd}}), "e\u0301\ufb01");
  EXPECT_EQ(changed("\u00e9\ufb01\u2460", {{NormalizerStep::Kind::nfkc}}), "\u00e9fi1");
  EXPECT_EQ(changed("\u00e9\ufb01", {{NormalizerStep::Kind::nfkd}}), "e\u0301fi");
}

TEST(Normalize, StopsStepsThatMakeATextLongerAndLonger) {
  std::vector<NormalizerStep> steps(20, NormalizerStep{NormalizerStep::Kind::replace, "a", "aaaaaaaaaa"});
  std::string scratch;
  EXPECT_THROW(apply_normalizers("a text", steps, scratch), Error);
  const NormalizerStep long_one{NormalizerStep::Kind::prepend, "", std::string(1 << 20, 'p')};
  EXPECT_THROW(apply_normalizers("a", std::span(&long_one, 1), scratch), Error);
}

TEST(Normalize, PrependsAndReplaces) {
  const std::vector<NormalizerStep> llama = {{NormalizerStep::Kind::prepend, "", "\u2581"}, {NormalizerStep::Kind::replace, " ", "\u2581"}};
  EXPECT_EQ(changed("a  b", llama), "\u2581a\u2581\u2581b");
  EXPECT_EQ(changed("", llama), "");
  EXPECT_EQ(changed("aaa", {{NormalizerStep::Kind::replace, "aa", "b"}}), "ba");
}

}  // namespace
}  // namespace cairn::data
