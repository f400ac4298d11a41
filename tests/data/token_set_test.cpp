#include "data/token_set.h"

#include <numeric>

#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

std::vector<int32_t> counting(int64_t n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

TokenSet set_of(int64_t tokens, int64_t length, double held_out = 0) {
  return TokenSet(counting(tokens), {.length = length, .held_out_fraction = held_out, .padding = 7}, "a test");
}

TEST(TokenSet, AsksForEveryTokenButTheFirstExactlyOnce) {
  for (const int64_t tokens : {5, 8, 9, 10, 12, 13, 101}) {
    const TokenSet set = set_of(tokens, 4);
    std::vector<int64_t> ids(set.samples());
    std::iota(ids.begin(), ids.end(), 0);
    mesh::Batch batch;
    set.fill(ids, batch);
    std::vector<int64_t> asked;
    int64_t counted = 0;
    const at::Tensor targets = batch.field("targets");
    for (int64_t i = 0; i < set.samples(); ++i) {
      counted += set.tokens_in(i);
      for (int64_t k = 0; k < 4; ++k)
        if (const auto target = targets[i][k].item<int64_t>(); target != kNoTarget) asked.push_back(target);
    }
    std::vector<int64_t> expected(tokens - 1);
    std::iota(expected.begin(), expected.end(), 101);
    EXPECT_EQ(asked, expected) << tokens;
    EXPECT_EQ(counted, tokens - 1) << tokens;
  }
}

TEST(TokenSet, FillsSamplesByIdAndPadsTheLast) {
  const TokenSet set = set_of(7, 4);  // targets: 4, then 2
  mesh::Batch batch;
  set.fill(std::vector<int64_t>{1, 0, 1}, batch);
  const auto longs = at::TensorOptions(at::kLong);
  EXPECT_TRUE(at::equal(batch.ids, at::tensor({1, 0, 1}, longs)));
  EXPECT_TRUE(at::equal(batch.field("tokens"), at::tensor({104, 105, 7, 7, 100, 101, 102, 103, 104, 105, 7, 7}, longs).view({3, 4})));
  EXPECT_TRUE(
      at::equal(batch.field("targets"), at::tensor({105, 106, -100, -100, 101, 102, 103, 104, 105, 106, -100, -100}, longs).view({3, 4})));
  EXPECT_EQ(set.tokens_in(0), 4);
  EXPECT_EQ(set.tokens_in(1), 2);
}

TEST(TokenSet, FillsAnEmptyShareWithAnEmptyBatch) {
  mesh::Batch batch;
  set_of(7, 4).fill({}, batch);
  EXPECT_EQ(batch.samples(), 0);
  EXPECT_EQ(batch.field("tokens").sizes(), (at::IntArrayRef{0, 4}));
}

TEST(TokenSet, HoldsOutTheEndOfTheCorpus) {
  EXPECT_EQ(set_of(101, 4).held_out(), (Samples{25, 0}));
  EXPECT_EQ(set_of(101, 4, 0.2).training(), (Samples{0, 20}));
  EXPECT_EQ(set_of(101, 4, 0.2).held_out(), (Samples{20, 5}));
  EXPECT_EQ(set_of(101, 4, 1e-9).held_out(), (Samples{24, 1}));
  EXPECT_EQ(set_of(9, 4, 0.99).held_out(), (Samples{1, 1}));
}

TEST(TokenSet, RefusesACorpusTooSmallForItsSamples) {
  EXPECT_EQ(set_of(5, 4).samples(), 1);
  EXPECT_EQ(refusal([] { set_of(4, 4); }),
            "a test: 4 tokens are too few; one sample of data.length = 4 needs 5: give more text or set data.length to 3 or less");
  EXPECT_EQ(set_of(9, 4, 0.1).samples(), 2);
  EXPECT_EQ(refusal([] { set_of(8, 4, 0.1); }),
            "a test: 8 tokens are too few; a training sample and a held-out sample of data.length = 4 needs 9: give more text or set "
            "data.length to 3 or less");
}

}  // namespace
}  // namespace cairn::data
