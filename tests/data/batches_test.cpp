#include "data/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/samples/spirals.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr int64_t kGlobalBatch = 7, kSteps = 5;

struct Drawn {
  std::unique_ptr<Dataset> dataset = make_spirals({.samples = 50, .held_out_fraction = 0.2});
  Subset subset = Subset().within(dataset->training());
  std::unique_ptr<Sampler> sampler = make_sampler("shuffled", {.from = subset, .global_batch = kGlobalBatch, .steps = kSteps, .seed = 3});

  BatchSource source(SampleShares shares = {}) const { return {*dataset, *sampler, subset, shares, at::Device(at::kCPU)}; }
};

std::vector<int64_t> ids_of(const mesh::Batch& batch) {
  return {batch.ids.const_data_ptr<int64_t>(), batch.ids.const_data_ptr<int64_t>() + batch.ids.numel()};
}

TEST(BatchSource, RanksOfAllIslandsTogetherHaveTheGlobalBatch) {
  const Drawn run;
  std::vector<int64_t> together;
  for (int island = 0; island < 2; ++island)
    for (int rank = 0; rank < 3; ++rank)
      for (const int64_t id : ids_of(
               run.source({.data_rank = rank, .data_ranks = 3, .step_group_ranks = 3, .island = island, .islands = 2}).make({.step = 2})))
        together.push_back(id);
  EXPECT_EQ(together, run.sampler->ids(1));
}

TEST(BatchSource, SkippedBatchesMoveTheSamplesAndNotTheProgress) {
  const Drawn run;
  const mesh::Batch batch = run.source().make({.step = 2, .batches_skipped = 2});
  EXPECT_EQ(ids_of(batch), run.sampler->ids(3));
  EXPECT_DOUBLE_EQ(batch.progress, run.sampler->progress(1));
  EXPECT_FALSE(batch.weights.defined());
}

TEST(BatchSource, GivesSamplesTheWeightsOfTheSubset) {
  Drawn run;
  run.subset = Subset::of({4, 9}, {0.5F, 2.0F});
  run.sampler = make_sampler("sequential", {.from = run.subset, .global_batch = 2, .steps = kSteps});
  const mesh::Batch batch = run.source().make({.step = 1});
  ASSERT_EQ(ids_of(batch), (std::vector<int64_t>{4, 9}));
  EXPECT_EQ(batch.weights[0].item<float>(), 0.5F);
  EXPECT_EQ(batch.weights[1].item<float>(), 2.0F);
}

TEST(BatchSource, CountsTheGlobalBatchAndTheStepGroup) {
  const Drawn run;
  const SampleShares shares{.data_rank = 2, .data_ranks = 4, .step_group_first = 2, .step_group_ranks = 2};
  const BatchCounts counts = run.source(shares).counts({.step = 1});
  EXPECT_EQ(counts.ids, run.sampler->ids(0));
  EXPECT_EQ(counts.tokens, kGlobalBatch);
  EXPECT_EQ(counts.step_group_samples, 4);  // 7 samples over 4 ranks: 1, 2, 2, 2
  EXPECT_EQ(counts.step_group_tokens, 4);
  EXPECT_EQ(counts.max_local_samples, 2);
}

TEST(BatchSource, LoadsTheSameBatchesAhead) {
  const Drawn run;
  const BatchSource source = run.source();
  const std::unique_ptr<Loader> loader = source.load_ahead({.step = 2, .batches_skipped = 1}, kSteps + 1);
  for (int64_t step = 2; step <= kSteps; ++step) EXPECT_EQ(ids_of(loader->next()), ids_of(source.make({step, 1})));
}

}  // namespace
}  // namespace cairn::data
