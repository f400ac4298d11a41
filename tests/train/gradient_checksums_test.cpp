// Steps that are computed twice (train.check_every): their results are those of other steps, and a pass that is not repeatable is found.
#include "train/steps/gradient_checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "parallel/pass.h"
#include "train/build.h"
#include "train/refusal.h"
#include "train/small_decoder.h"
#include "train/take_step.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

struct CheckedCase {
  std::string name;
  int ranks;
  std::vector<std::string> sets;
  std::string family = "llama";
};

class StepsThatAreCheckedOn : public testing::TestWithParam<CheckedCase> {};

TEST_P(StepsThatAreCheckedOn, GiveTheSameResults) {
  const harness::ScratchFolder folder;
  const auto losses = [&](const std::string& every) {
    std::vector<std::string> sets = GetParam().sets;
    sets.insert(sets.end(), {"train.steps=5", "train.check_every=" + every});
    return losses_on(GetParam().ranks, small_decoder(GetParam().family, sets), folder.path() / every);
  };
  const std::vector<double> plain = losses("0");
  EXPECT_EQ(losses("2"), plain);
  EXPECT_EQ(losses("1"), plain);
}

INSTANTIATE_TEST_SUITE_P(
    Every, StepsThatAreCheckedOn,
    testing::Values(CheckedCase{"one_rank", 1, {"model.dropout=0.1"}},
                    CheckedCase{"parts", 1, {"train.micro_batch=2", "recompute.mode=full", "train.loss_chunks=2"}},
                    CheckedCase{"bf16", 1, {"train.precision=bf16", "train.parameters=bf16", "train.gradients=bf16"}},
                    CheckedCase{"frozen", 1, {R"(model.train=["*.mlp.*"])"}}, CheckedCase{"dp2", 2, {"train.on_bad_step=skip"}},
                    CheckedCase{"islands", 2, {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=2"}},
                    CheckedCase{"zero1", 2, {"memory.zero=1"}}, CheckedCase{"zero3", 2, {"memory.zero=3"}},
                    CheckedCase{"cp2", 2, {"mesh.cp=2"}},
                    CheckedCase{"zero2_each_micro_batch", 2, {"memory.zero=2", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
                    CheckedCase{"pp2", 2, {"mesh.pp=2", "pipeline.micro_batches=3"}}, CheckedCase{"tp2", 2, {"mesh.tp=2"}},
                    CheckedCase{"batch_norm", 2, {"data.kind=spirals", "model.batch_norm=true"}, "classifier"}),
    [](const auto& one) { return one.param.name; });

// Every third pass adds a little to one gradient.
TEST(GradientChecksums, FindAPassThatDoesNotRepeatItself) {
  harness::on_ranks(1, [](comm::World& world) {
    const auto job = build(world, small_decoder("llama", {"train.steps=4"}), {}, {});
    const size_t one = 3;
    int64_t passes = 0;
    const auto wrong_at_times = [&](const parallel::Pass& pass) {
      model::Losses losses = parallel::execute(pass);
      if (++passes % 3 == 0) job->engine.trained.gradients[one].tensor.select(0, 0).add_(1e-6);
      return losses;
    };
    job->step = make_step(in_turn(wrong_at_times), /*check_every=*/2);
    take_step(*job);  // is not computed twice
    job->progress.steps_done = 1;
    try {
      take_step(*job);
      ADD_FAILURE() << "passes 2 and 3 gave the same result";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::diverged);
      EXPECT_THAT(error.what(), testing::HasSubstr("step 2: computed twice (train.check_every), the gradient of " +
                                                   job->engine.trained.gradients[one].name + " differs between the two"));
    }
  });
}

TEST(GradientChecksums, CountWhatElseDiffers) {
  const mesh::NamedTensors gradients{{"a", at::ones({3})}, {"b", at::ones({2, 2}, at::kBFloat16)}};
  const GradientChecksums first(at::full({}, 2.0), gradients);
  EXPECT_NO_THROW(first.expect_same({at::full({}, 2.0), gradients}, 7));
  gradients[1].tensor[0][1] = 1.0078125;  // the next bf16
  try {
    first.expect_same({at::full({}, 2.5), gradients}, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the loss (and 1 more tensors) differs"));
  }
}

// The message names the gradient nearest to the loss, because backward computes it first.
TEST(GradientChecksums, NameWhatWasComputedFirst) {
  const mesh::NamedTensors gradients{{"a", at::ones({3})}, {"b", at::ones({3})}, {"c", at::ones({3})}};
  const GradientChecksums first({}, gradients);
  for (const size_t i : {0, 1}) gradients[i].tensor[1] = 2;
  try {
    first.expect_same({{}, gradients}, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the gradient of b (and 1 more"));
  }
}

// A slow island leaves steps out: the next step that it runs is checked.
TEST(GradientChecksums, AreOfTheFirstStepAtOrAfterEachMultiple) {
  harness::on_ranks(1, [](comm::World& world) {
    const auto job = build(world, small_decoder("llama", {"train.steps=20"}), {}, {});
    int64_t passes = 0;
    job->step = make_step(in_turn([&](const parallel::Pass& pass) { return ++passes, parallel::execute(pass); }), /*check_every=*/4);
    std::vector<int64_t> twice;
    for (const int64_t step : {1, 3, 5, 6, 7, 9, 12, 13, 19}) {
      job->progress.steps_done = step - 1;
      const int64_t before = passes;
      take_step(*job);
      if (passes == before + 2) twice.push_back(step);
    }
    EXPECT_EQ(twice, (std::vector<int64_t>{5, 9, 12, 19}));
  });
}

TEST(GradientChecksums, AreRefusedWhereTheyCannotBe) {
  const auto refused = [](const std::string& set) { return refusal_of(small_decoder("llama", {"train.check_every=3", set})); };
  EXPECT_THAT(refused("train.method=one_byte"), testing::HasSubstr("compares the gradients of ordinary steps"));
  EXPECT_THAT(refused("train.cuda_graph=true"), testing::HasSubstr("train.check_every = 3: does not work with train.cuda_graph = true"));
  EXPECT_THAT(refused("log.sync_check=true"), testing::HasSubstr("waits for the device to compare"));
  EXPECT_THAT(refused("train.steps=2"), testing::HasSubstr("train.check_every = 3: train.steps = 2, and none would be checked"));
}

}  // namespace
}  // namespace cairn::train
