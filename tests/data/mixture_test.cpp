#include "data/samples/mixture.h"

#include <cmath>

#include <gtest/gtest.h>

#include "data/samples/packer.h"
#include "data/tokenizer/utf8_check.h"

namespace cairn::data {
namespace {

TEST(Mixture, GivesEveryStreamItsShareInEveryStretch) {
  const std::vector<double> weights = {5, 3, 1.5, 0.5};
  const Mixture mixture(weights, 3);
  std::vector<int64_t> counts(4, 0);
  for (int64_t draw = 0; draw < 20000; ++draw) {
    const Mixture::Draw at = mixture.at(draw);
    EXPECT_EQ(at.number, counts[static_cast<size_t>(at.stream)]) << draw;  // in order, none left out
    ++counts[static_cast<size_t>(at.stream)];
    for (int64_t stream = 0; stream < 4; ++stream) {
      ASSERT_EQ(mixture.drawn(stream, draw + 1), counts[static_cast<size_t>(stream)]);
      ASSERT_LT(std::abs(static_cast<double>(counts[static_cast<size_t>(stream)]) -
                         weights[static_cast<size_t>(stream)] / 10 * static_cast<double>(draw + 1)),
                5.0);
    }
  }
}

TEST(Mixture, IsExactInTheLongRun) {
  const std::vector<double> weights = {1, 2, 1};
  const Mixture mixture(weights, 8);
  const int64_t period = int64_t{1} << 30;
  EXPECT_EQ(mixture.drawn(0, period), period / 4);
  EXPECT_EQ(mixture.drawn(1, 6 * period), 3 * period);
  // Far into a run: consecutive draws still count on.
  int64_t numbers[3];
  const int64_t far = 5 * period - 500;
  for (int64_t stream = 0; stream < 3; ++stream) numbers[stream] = mixture.drawn(stream, far);
  for (int64_t draw = far; draw < far + 1000; ++draw) {
    const Mixture::Draw at = mixture.at(draw);
    ASSERT_EQ(at.number, numbers[at.stream]++);
  }
}

TEST(Mixture, DependsOnTheSeedAloneBesideTheWeights) {
  const std::vector<double> weights = {0.3, 0.7};
  int64_t differ = 0;
  for (int64_t draw = 0; draw < 1000; ++draw) {
    EXPECT_EQ(Mixture(weights, 1).at(draw), Mixture(weights, 1).at(draw));
    differ += Mixture(weights, 1).at(draw) != Mixture(weights, 2).at(draw);
  }
  EXPECT_GT(differ, 100);
  EXPECT_EQ(Mixture(std::vector<double>{4}, 1).at(123), (Mixture::Draw{0, 123}));
}

TEST(Mixture, GivesEvenATinyWeightItsDraws) {
  const std::vector<double> weights = {1e-30, 1, 1e-30};
  const Mixture mixture(weights, 1);
  const int64_t period = int64_t{1} << 30;
  EXPECT_EQ(mixture.drawn(0, period), 1);
  EXPECT_EQ(mixture.drawn(1, period), period - 2);
  EXPECT_EQ(mixture.drawn(2, period), 1);
}

TEST(Packer, FillsTheFullestBinThatHasRoom) {
  Packer packer(10, 100);
  EXPECT_EQ(packer.place(6), 0);
  EXPECT_EQ(packer.place(7), 1);
  EXPECT_EQ(packer.place(3), 1);  // leaves nothing, where bin 0 would leave 1
  EXPECT_EQ(packer.place(10), 2);
  EXPECT_EQ(packer.place(4), 0);
  EXPECT_EQ(packer.place(1), 3);
  EXPECT_EQ(packer.bins(), 4);
}

TEST(Packer, ClosesTheFullestBinWhenTooManyAreOpen) {
  Packer packer(10, 2);
  for (int64_t bin = 0; bin < 3; ++bin) EXPECT_EQ(packer.place(8 - bin), bin);  // room 2, 3, 4
  EXPECT_EQ(packer.place(2), 1);                                                // bin 0 is closed
}

TEST(Packer, WastesLittle) {
  Packer packer(1024, 512);
  int64_t sum = 0;
  for (int64_t i = 0; i < 20000; ++i) {
    const int64_t size = 1 + i * 7919 % 700;
    sum += size;
    packer.place(size);
  }
  EXPECT_GT(static_cast<double>(sum) / static_cast<double>(packer.bins() * 1024), 0.97);
}

TEST(Utf8, IsCheckedByTheTable) {
  const auto at = [](std::string_view text) { return first_invalid_utf8(text); };
  const size_t none = std::string_view::npos;
  EXPECT_EQ(at(""), none);
  EXPECT_EQ(at("plain ASCII of some length"), none);
  EXPECT_EQ(at("0123456789 \xc3\xbc \xe2\x82\xac \xf0\x9f\x8c\x8d"), none);
  EXPECT_EQ(at("01234567\xc3"), 8u);      // cut off
  EXPECT_EQ(at("01234567\xc0\xaf"), 8u);  // overlong
  EXPECT_EQ(at("0\xed\xa0\x80"), 1u);     // a surrogate
  EXPECT_EQ(at("\xf4\x90\x80\x80"), 0u);  // beyond Unicode
  EXPECT_EQ(at("\xe2\x82\xac\x80"), 3u);  // a follower alone
}

}  // namespace
}  // namespace cairn::data
