#include <functional>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "study/prune/criteria.h"
#include "study/prune/input_statistics.h"
#include "study/prune/prune_options.h"

namespace cairn::study {
namespace {

using testing::HasSubstr;

at::Tensor drawn(std::vector<int64_t> shape, uint64_t seed) {
  const at::Tensor values = at::empty(shape);
  base::Random(seed).fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return values;
}

int64_t gone(const at::Tensor& kept) { return kept.numel() - kept.sum().item<int64_t>(); }

TEST(PruneCriteria, RemoveExactlyTheFloorOfTheShare) {
  const at::Tensor scores = drawn({7, 11}, 1).abs();
  for (const double sparsity : {0.0, 0.1, 0.3, 0.5, 0.7, 0.99}) {
    EXPECT_EQ(gone(keep_highest(scores, {.sparsity = sparsity})), static_cast<int64_t>(sparsity * 77));
    const at::Tensor rows = keep_highest(scores, {.sparsity = sparsity, .by_row = true});
    for (int64_t r = 0; r < 7; ++r) EXPECT_EQ(gone(rows[r]), static_cast<int64_t>(sparsity * 11));
  }
}

TEST(PruneCriteria, BreakTiesByIndex) {
  const at::Tensor scores = at::full({3, 4}, 2.0f);
  const at::Tensor kept = keep_highest(scores, {.sparsity = 0.5}).view({-1});
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(kept[i].item<bool>(), i >= 6) << i;
  const at::Tensor rows = keep_highest(scores, {.sparsity = 0.5, .by_row = true});
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(rows[1][i].item<bool>(), i >= 2) << i;
}

TEST(PruneCriteria, KeepTheHighest) {
  const at::Tensor scores = at::tensor({5.0f, 1.0f, 4.0f, 2.0f, 3.0f, 0.0f}).view({2, 3});
  const at::Tensor kept = keep_highest(scores, {.sparsity = 0.5});
  EXPECT_TRUE(at::equal(kept.view({-1}), at::tensor({1, 0, 1, 0, 1, 0}).to(at::kBool)));
}

TEST(PruneCriteria, APatternHasItsNumberInEveryGroup) {
  for (const auto& [n, m] : std::vector<std::pair<int64_t, int64_t>>{{2, 4}, {4, 8}, {1, 4}}) {
    const at::Tensor scores = drawn({6, 16}, 2).abs();
    const at::Tensor kept = keep_highest(scores, {.pattern = {n, m}}).view({-1, m});
    EXPECT_TRUE(at::equal(kept.sum(1), at::full({6 * 16 / m}, m - n, at::kLong)));
  }
}

TEST(PruneCriteria, WhatIsGoneStaysGone) {
  const at::Tensor scores = drawn({8, 16}, 3).abs(), before = keep_highest(drawn({8, 16}, 4).abs(), {.sparsity = 0.4});
  const at::Tensor after = keep_highest(scores, {.sparsity = 0.7}, before);
  EXPECT_EQ(gone(after), static_cast<int64_t>(0.7 * 128));
  EXPECT_FALSE(after.logical_and(before.logical_not()).any().item<bool>());
}

TEST(PruneCriteria, WandaWeighsByTheNormOfTheInput) {
  const at::Tensor weight = at::ones({2, 4}), squares = at::tensor({4.0f, 1.0f, 9.0f, 0.0f});
  const at::Tensor kept = keep_highest(wanda_scores(weight, squares), {.sparsity = 0.5, .by_row = true});
  EXPECT_TRUE(at::equal(kept[0], at::tensor({1, 0, 1, 0}).to(at::kBool)));
}

// x [rows, in] with correlated columns.
at::Tensor correlated(int64_t rows, int64_t in, uint64_t seed) {
  const at::Tensor mix = drawn({in, in}, seed + 1000) * 0.4;
  return at::matmul(drawn({rows, in}, seed), mix) + drawn({rows, in}, seed + 2000);
}

TEST(SparseGpt, HasALowerErrorThanMagnitudeInEveryDraw) {
  int better = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const at::Tensor w = drawn({64, 64}, seed + 5), x = correlated(256, 64, seed), y = at::matmul(x, w.t());
    const at::Tensor repaired = w.clone(), hessian = at::mm(x.t(), x) * (2.0 / 256);
    const at::Tensor kept = prune_sparsegpt(repaired, hessian, {.sparsity = 0.5});
    EXPECT_EQ(gone(kept), 64 * 64 / 2);
    EXPECT_EQ(repaired.masked_select(kept.logical_not()).abs().sum().item<double>(), 0);
    const at::Tensor plain = w.masked_fill(keep_highest(magnitude_scores(w), {.sparsity = 0.5}).logical_not(), 0);
    const auto error = [&](const at::Tensor& other) { return (at::matmul(x, other.t()) - y).square().sum().item<double>(); };
    better += error(repaired) < error(plain);
  }
  EXPECT_EQ(better, 50);
}

TEST(SparseGpt, CountsExactlyOverBlocksAndKeepsPatterns) {
  const at::Tensor w = drawn({6, 300}, 1), x = correlated(400, 300, 2), hessian = at::mm(x.t(), x) * (2.0 / 400);
  EXPECT_EQ(gone(prune_sparsegpt(w.clone(), hessian, {.sparsity = 0.37})), static_cast<int64_t>(0.37 * 1800));
  const at::Tensor kept = prune_sparsegpt(w.clone(), hessian, {.pattern = {2, 4}});
  EXPECT_TRUE(at::equal(kept.view({-1, 4}).sum(1), at::full({450}, 2, at::kLong)));
}

TEST(SparseGpt, WeightsOfDeadInputsAreZero) {
  const at::Tensor x = correlated(100, 16, 3);
  x.select(1, 4).zero_();
  const at::Tensor w = drawn({5, 16}, 4);
  prune_sparsegpt(w, at::mm(x.t(), x) * 0.02, {.sparsity = 0.25});
  EXPECT_EQ(w.select(1, 4).abs().sum().item<double>(), 0);
  EXPECT_TRUE(at::isfinite(w).all().item<bool>());
}

TEST(InputStatistics, WeightsOfOneInputShareTheirs) {
  InputStatistics statistics(InputStatistics::Kind::products);
  for (int batch = 0; batch < 2; ++batch) {
    const at::Tensor x = drawn({10, 4}, static_cast<uint64_t>(batch)), other = drawn({10, 3}, 7);
    statistics.see("q", x), statistics.see("k", x), statistics.see("o", other);
  }
  EXPECT_TRUE(at::equal(statistics.mean("q"), statistics.mean("k")));
  const at::Tensor all = at::cat(std::vector<at::Tensor>{drawn({10, 4}, 0), drawn({10, 4}, 1)});
  EXPECT_TRUE(at::allclose(statistics.mean("q"), at::mm(all.t(), all) / 10));
  EXPECT_EQ(statistics.mean("o").size(0), 3);
}

std::string refusal(const PruneOptions& options) {
  try {
    check_prune_options(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

TEST(PruneOptions, RefuseWhatContradictsItself) {
  const auto with = [](const std::function<void(PruneOptions&)>& change) {
    PruneOptions options;
    change(options);
    return refusal(options);
  };
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_THAT(with([](PruneOptions& o) { o.sparsity = 1; }), HasSubstr("nothing would be left"));
  EXPECT_THAT(with([](PruneOptions& o) { o.recover.train = {}; }), HasSubstr("nothing would be trained"));
  EXPECT_THAT(with([](PruneOptions& o) { o.recover.train = {"biases"}; }), HasSubstr("bias"));
  EXPECT_THAT(with([](PruneOptions& o) { o.pattern = "2:4", o.sparsity = 0.6; }), HasSubstr("pattern 2:4 removes 0.5"));
  EXPECT_EQ(with([](PruneOptions& o) { o.pattern = "2:4"; }), "accepted");
  EXPECT_THAT(with([](PruneOptions& o) { o.pattern = "4:2"; }), HasSubstr("n of every m"));
  EXPECT_THAT(with([](PruneOptions& o) { o.pattern = "two"; }), HasSubstr("n of every m"));
  EXPECT_THAT(with([](PruneOptions& o) { o.recover.train = {"lora"}; }), HasSubstr("prune.export = \"adapter\""));
  EXPECT_EQ(with([](PruneOptions& o) { o.recover.train = {"lora"}, o.exported = PruneExport::adapter; }), "accepted");
  EXPECT_THAT(with([](PruneOptions& o) { o.recover.train = {"mask_lora", "scale_lora"}; }), HasSubstr("forms of the same weights"));
  EXPECT_THAT(with([](PruneOptions& o) { o.recover.mode = RecoverMode::reconstruct, o.rounds = 2; }), HasSubstr("one round"));
  EXPECT_THAT(with([](PruneOptions& o) { o.method = PruneMethod::sparsegpt, o.compare = PruneCompare::row; }), HasSubstr("128 columns"));
}

}  // namespace
}  // namespace cairn::study
