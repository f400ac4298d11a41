#include "study/sample_scores.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/stop.h"
#include "kernels/aten.h"
#include "study/study_table.h"
#include "study/trained_weights.h"
#include "train/build.h"
#include "train/train.h"

namespace cairn::study {
namespace {

using testing::HasSubstr;

class SampleScoring : public testing::Test {
 protected:
  SampleScoring() { write_study_table(folder_, "rows.csv", 60, 4); }
  base::Recipe recipe(const std::vector<std::string>& sets = {}) const {
    base::Recipe made = base::Recipe::parse(
        "model = {kind = \"classifier\", hidden = [8]}\ndata = {kind = \"table\", ignore = [\"group\", \"right\", \"wrong\"]}\ntrain = "
        "{steps = "
        "12, global_batch = 10}\noptim = {learning_rate = 0.02, warmup_steps = 0}\neval = {every = 0, fraction = 0.2}\nlog = {tensorboard "
        "= false, trace = false}",
        "scores");
    made.set("data.path", (folder_ / "rows.csv").string(), "test");
    for (const std::string& one : sets) made.set(one);
    return made;
  }
  SampleScores scores(int ranks, const ScoreOptions& options, const std::vector<std::string>& sets = {}) const {
    SampleScores found;
    on_study_ranks(ranks, [&](comm::World& world) {
      const auto job = train::build(world, recipe(sets), {.out = {}, .cache = {}, .terminal = nullptr}, {});
      SampleScores mine = score_samples(*job, ids_, options);
      if (world.rank() == 0) found = std::move(mine);
    });
    return found;
  }

  harness::ScratchFolder folder_;
  std::vector<int64_t> ids_{5, 0, 17, 3, 3, 41};
};

TEST_F(SampleScoring, FollowsFromTheProbabilities) {
  const SampleScores found = scores(1, {.probabilities = true});
  const at::Tensor log_p = found.probabilities;
  ASSERT_EQ(log_p.size(0), 6);
  for (int64_t i = 0; i < 6; ++i) {
    const at::Tensor p = log_p[i].exp();
    EXPECT_NEAR(p.sum().item<double>(), 1, 1e-6);
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(found.entropy[at], -(p * log_p[i]).sum().item<double>(), 1e-5);
    EXPECT_EQ(found.targets[at], 1);
    // el2n^2 = sum p^2 - 2 p_t + 1, with p_t = exp(-loss)
    EXPECT_NEAR(found.el2n[at], std::sqrt(p.square().sum().item<double>() - 2 * std::exp(-found.loss[at]) + 1), 1e-5);
    EXPECT_EQ(found.correct[at], std::abs(std::exp(-found.loss[at]) - p.max().item<double>()) < 1e-6 ? 1 : 0);
  }
  EXPECT_EQ(found.loss[3], found.loss[4]);  // the same sample twice
}

TEST_F(SampleScoring, GradientsOfAHeadAreErrorsTimesInputs) {
  const SampleScores found = scores(1, {.gradients = true, .layer = "last", .projection = {.dim = 8192}, .probabilities = true});
  EXPECT_EQ(found.not_finite, 0);
  ASSERT_EQ(found.hidden.sizes(), (std::vector<int64_t>{6, 8}));
  for (int64_t i = 0; i < 6; ++i) {
    const double inputs = found.hidden[i].square().sum().item<double>() + 1;  // and the bias
    EXPECT_NEAR(found.grand[static_cast<size_t>(i)], found.el2n[static_cast<size_t>(i)] * std::sqrt(inputs), 1e-4);
    EXPECT_NEAR(found.vectors[i].norm().item<double>(), 1, 1e-5);
  }
  EXPECT_NEAR((found.vectors[3] * found.vectors[4]).sum().item<double>(), 1, 1e-5);
  EXPECT_LT((found.vectors[0] * found.vectors[1]).sum().item<double>(), 0.99);
}

TEST_F(SampleScoring, ProjectionsKeepAngles) {
  const SampleScores wide = scores(1, {.gradients = true, .layer = "all", .projection = {.dim = 16384}}),
                     other = scores(1, {.gradients = true, .layer = "all", .projection = {.dim = 16384, .seed = 1}});
  const at::Tensor a = at::matmul(wide.vectors, wide.vectors.t()), b = at::matmul(other.vectors, other.vectors.t());
  EXPECT_LT((a - b).abs().max().item<double>(), 0.06);
  EXPECT_GT((wide.vectors - other.vectors).abs().max().item<double>(), 1e-3);  // another matrix
}

TEST_F(SampleScoring, RanksShareTheWork) {
  const ScoreOptions options{.gradients = true, .layer = "middle", .projection = {.dim = 256}};
  const SampleScores one = scores(1, options), two = scores(2, options), four = scores(4, options, {"memory.zero=3"});
  for (const SampleScores* other : {&two, &four}) {
    for (size_t i = 0; i < ids_.size(); ++i) EXPECT_NEAR(other->loss[i], one.loss[i], 1e-6);
    EXPECT_LT((other->vectors - one.vectors).abs().max().item<double>(), 1e-5);
    EXPECT_LT((other->hidden - one.hidden).abs().max().item<double>(), 1e-5);
  }
}

TEST_F(SampleScoring, LeavesColumnsOut) {
  const SampleScores seen = scores(1, {}), blind = scores(1, {.zeroed = {0, 1, 2, 3}});
  EXPECT_NE(seen.loss[0], seen.loss[1]);
  EXPECT_EQ(blind.loss.size(), 6u);
  EXPECT_NE(blind.loss[0], seen.loss[0]);
}

TEST_F(SampleScoring, LossesAlonePointTheSameWay) {
  on_study_ranks(1, [&](comm::World& world) {
    const auto job = train::build(world, recipe(), {.out = {}, .cache = {}, .terminal = nullptr}, {});
    const ScoreOptions options{.gradients = true, .layer = "last", .projection = {.dim = 1024}};
    const at::Tensor exact = score_samples(*job, ids_, options).vectors;
    const std::vector<double> before = score_samples(*job, ids_).loss;
    const at::Tensor estimate = zero_order_vectors(*job, ids_, options, {.directions = 400});
    EXPECT_EQ(score_samples(*job, ids_).loss, before);                // the weights are as they were
    EXPECT_GT((exact * estimate).sum(1).min().item<double>(), 0.85);  // 27 parameters
  });
}

TEST_F(SampleScoring, ScoresTextsByTheirTargets) {
  folder_.file("notes.txt", "One line here.\n\nAnother, a little longer than the first.\n\nA third.\n\nAnd a fourth, to have enough.\n");
  base::Recipe text = base::Recipe::parse(
      "model = {layers = 2, embed = 16, heads = 2, kv_heads = 1, mlp = 24}\ndata = {tokenizer = \"bytes\", length = 48, packing = "
      "\"none\"}\ntrain = {steps = 2, global_batch = 2}\neval = {every = 0, fraction = 0.0}\nlog = {tensorboard = false, trace = false, "
      "samples = 0}",
      "texts");
  text.set("data.path", (folder_ / "notes.txt").string(), "test");
  on_study_ranks(1, [&](comm::World& world) {
    const auto job = train::build(world, text, {.out = {}, .cache = {}, .terminal = nullptr}, {});
    std::vector<int64_t> ids(static_cast<size_t>(job->data.samples->training().count));
    std::iota(ids.begin(), ids.end(), int64_t{0});
    const SampleScores found = score_samples(*job, ids, {.gradients = true, .projection = {.dim = 128}});
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_GT(found.targets[i], 0);
      EXPECT_NEAR(found.loss[i], std::log(257), 1);  // an untrained model
      EXPECT_GT(found.grand[i], 0);
    }
    EXPECT_EQ(found.hidden.size(1), 16);
    std::vector<int64_t> last{ids.back()};
    EXPECT_NEAR(score_samples(*job, last).loss[0], found.loss.back(), 1e-5);  // whatever it is computed with
  });
}

TEST_F(SampleScoring, RefusesLayersThatAreNotTrained) {
  EXPECT_THAT(answer_to([&] { scores(1, {.gradients = true, .layer = "9"}); }), HasSubstr("a layer from 0 to 1"));
  EXPECT_THAT(answer_to([&] { scores(1, {.gradients = true, .projection = {.dim = 100}}); }), HasSubstr("multiple of 128"));
}

TEST_F(SampleScoring, WeightsTravelThroughAFile) {
  on_study_ranks(1, [&](comm::World& world) {
    const auto job = train::build(world, recipe(), {.out = {}, .cache = {}, .terminal = nullptr}, {});
    const auto other = train::build(world, recipe({"train.seed=9"}), {.out = {}, .cache = {}, .terminal = nullptr}, {});
    write_weights((folder_ / "w.bin").string(), take_trained(*job));
    EXPECT_NE(score_samples(*other, ids_).loss, score_samples(*job, ids_).loss);
    put_trained(*other, read_weights((folder_ / "w.bin").string()));
    EXPECT_EQ(score_samples(*other, ids_).loss, score_samples(*job, ids_).loss);
  });
  std::filesystem::resize_file(folder_ / "w.bin", std::filesystem::file_size(folder_ / "w.bin") - 3);
  EXPECT_THAT(answer_to([&] { read_weights((folder_ / "w.bin").string()); }), HasSubstr("w.bin"));
}

}  // namespace
}  // namespace cairn::study
