#include "data/samples/preference_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "documents.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;

std::vector<int64_t> values(const mesh::Batch& batch, const char* name) {
  const at::Tensor& tensor = batch.field(name);
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

// Three pairs: prompt of two tokens, answers of one to three and an end.
std::shared_ptr<const TokenStream> pairs() {
  return row_of({{{1, 2, 3, 9}, {0, 0, 1, 1}},
                 {{1, 2, 4, 5, 9}, {0, 0, 1, 1, 1}},
                 {{11, 12, 13, 14, 15, 16, 9}, {0, 0, 0, 0, 0, 1, 1}},  // the prompt alone fills a sample of 4
                 {{11, 12, 13, 14, 15, 17, 9}, {0, 0, 0, 0, 0, 1, 1}},
                 {{21, 22, 23, 24, 25, 26, 9}, {0, 0, 1, 1, 1, 1, 1}},
                 {{21, 22, 9}, {0, 0, 1}}});
}

TEST(PreferenceDataset, GivesBothSidesOfAPair) {
  const PreferenceDataset set(pairs(), {.length = 4, .held_out_fraction = 0, .padding = 7}, "a test");
  EXPECT_EQ(set.training(), (SampleRange{0, 2}));
  EXPECT_EQ(set.left_out(), 1);
  mesh::Batch batch;
  set.fill(std::vector<int64_t>{1, 0}, batch);
  EXPECT_EQ(batch.samples(), 2);
  EXPECT_THAT(values(batch, "chosen_tokens"), ElementsAre(21, 22, 23, 24, 1, 2, 3, 7));
  EXPECT_THAT(values(batch, "chosen_targets"), ElementsAre(-100, 23, 24, 25, -100, 3, 9, -100));
  EXPECT_THAT(values(batch, "rejected_tokens"), ElementsAre(21, 22, 7, 7, 1, 2, 4, 5));
  EXPECT_THAT(values(batch, "rejected_targets"), ElementsAre(-100, 9, -100, -100, -100, 4, 5, 9));
  PreferenceDataset(pairs(), {.length = 100, .held_out_fraction = 0, .padding = 7}, "a test")
      .fill(std::vector<int64_t>{0}, batch);  // no wider
  EXPECT_THAT(values(batch, "chosen_tokens"), ElementsAre(1, 2, 3, 7));
  EXPECT_EQ(set.tokens_in(0), 2 + 3);
  EXPECT_EQ(set.tokens_in(1), 3 + 1);
}

TEST(PreferenceDataset, HoldsOutTheLastPairs) {
  const PreferenceDataset set(pairs(), {.length = 100, .held_out_fraction = 0.3, .padding = 7}, "a test");
  EXPECT_EQ(set.training(), (SampleRange{0, 2}));
  EXPECT_EQ(set.held_out(), (SampleRange{2, 1}));
}

TEST(PreferenceDataset, RefusesWhatIsNoPairsOrTooFew) {
  EXPECT_EQ(refusal([] {
              PreferenceDataset(row_of({{{1, 2}}}), {}, "a test");
            }),
            "a test: 1 documents are no pairs; data.kind = preference needs records with \"chosen\" and \"rejected\"");
  EXPECT_EQ(refusal([] { PreferenceDataset(pairs(), {.length = 1}, "a test"); }),
            "a test: 0 of 3 pairs can be used, 1 or more are needed; give more of them, or a data.length that holds the prompts");
}

}  // namespace
}  // namespace cairn::data
