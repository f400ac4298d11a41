#include "study/synthetic_tokens.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "data/corpus/llmc_file.h"
#include "harness/scratch_folder.h"

namespace cairn::study {
namespace {

TEST(SyntheticTokens, FollowFromTheOneBeforeHalfOfTheTimeAndAreElseAsFrequentAsWords) {
  constexpr int64_t kCount = 40000, kVocab = 1000;
  const harness::ScratchFolder folder;
  const SyntheticTokens drawn = write_synthetic_tokens(kCount, kVocab, folder.path());
  const data::TokenShard tokens = data::open_llmc_file(drawn.tokens, kVocab, /*end_of_text=*/kVocab - 1);  // refuses ids beyond
  ASSERT_EQ(tokens.size(), kCount);
  int64_t follow = 0, below_10 = 0, below_100 = 0;
  for (size_t i = 1; i < kCount; ++i) {
    const int32_t id = tokens.wide[i];
    if (id == (7 * tokens.wide[i - 1] + 13) % kVocab)
      ++follow;
    else if (id < 10)
      ++below_10;
    else if (id < 100)
      ++below_100;
  }
  EXPECT_NEAR(static_cast<double>(follow) / kCount, 0.5, 0.01);
  EXPECT_NEAR(static_cast<double>(below_10) / static_cast<double>(below_100), 1, 0.05);  // as many in each power of ten, as words have it
}

TEST(SyntheticTokens, AreAlwaysTheSame) {
  const harness::ScratchFolder one, other;
  EXPECT_EQ(base::read_file(write_synthetic_tokens(1000, 300, one.path()).tokens, 1 << 20),
            base::read_file(write_synthetic_tokens(1000, 300, other.path()).tokens, 1 << 20));
}

}  // namespace
}  // namespace cairn::study
