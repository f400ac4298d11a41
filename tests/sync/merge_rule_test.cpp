// How islands merge each other's updates, honest or not.
#include "sync/islands/merge_rule.h"

#include <limits>

#include <gtest/gtest.h>

#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

std::vector<Contribution> rows(const std::vector<std::vector<float>>& values, const std::vector<double>& weights = {}) {
  std::vector<Contribution> all;
  for (size_t i = 0; i < values.size(); ++i) all.push_back({at::tensor(values[i]), weights.empty() ? 1 : weights[i]});
  return all;
}

at::Tensor merged(MergeKind kind, std::vector<Contribution> contributions) { return merge({.kind = kind}, contributions); }

TEST(Merge, IsAMeanByWeight) {
  EXPECT_TRUE(at::allclose(merged(MergeKind::mean, rows({{1, 2}, {3, 6}})), at::tensor({2.F, 4.F})));
  EXPECT_TRUE(at::allclose(merged(MergeKind::mean, rows({{1, 2}, {3, 6}}, {3, 1})), at::tensor({1.5F, 3.F})));
}

TEST(Merge, LeavesOutWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const float bad : {inf, -inf, nan}) {
    for (const MergeKind kind : {MergeKind::mean, MergeKind::trim})
      EXPECT_TRUE(at::equal(merged(kind, rows({{1, 2}, {bad, 0}, {3, 4}})), at::tensor({2.F, 3.F})))
          << base::enum_name(kMergeKindNames, kind);
    for (const MergeKind kind : {MergeKind::median, MergeKind::clip})
      EXPECT_TRUE(at::equal(merged(kind, rows({{1, 2}, {bad, 0}, {3, 4}})), merged(kind, rows({{1, 2}, {3, 4}}))))
          << base::enum_name(kMergeKindNames, kind);
  }
  EXPECT_FALSE(merged(MergeKind::mean, rows({{nan}, {inf}})).defined());
  for (const double weight : {0.0, -1.0, static_cast<double>(nan), static_cast<double>(inf)})
    EXPECT_TRUE(at::equal(merged(MergeKind::mean, rows({{1}, {100}}, {1, weight})), at::tensor({1.F}))) << weight;
}

TEST(Merge, BoundsWhatOneIslandCanDo) {
  const std::vector<std::vector<float>> honest{{1, 1}, {1.1F, 0.9F}, {0.9F, 1.1F}, {1, 1.05F}};
  for (const std::vector<float>& attack : std::vector<std::vector<float>>{{1e9F, -1e9F}, {-100, -100}, {0, 5}}) {
    std::vector<std::vector<float>> all = honest;
    all.push_back(attack);
    const auto off = [&](MergeKind kind) { return furthest(merged(kind, rows(all)), at::tensor({1.F, 1.F})); };
    EXPECT_LT(off(MergeKind::median), 0.11);
    EXPECT_LT(off(MergeKind::trim), 0.11);
    EXPECT_LT(off(MergeKind::clip), 0.6);  // as long as the others, in whatever direction
    EXPECT_TRUE(std::abs(attack[0]) < 10 || off(MergeKind::mean) > 10);
  }
}

// An island of five that sends nonsense from the third round on.
ToyEnd with_a_liar(MergeKind rule, float nonsense) {
  SyncOptions options{.kind = "diloco"};
  options.outer = {.every = 4, .outer_lr = 0.7, .outer_momentum = 0.9, .outer_warmup = 0};
  options.exchange.merge = rule;
  std::vector<ToyEnd> ends(5);
  harness::on_ranks(5, [&](comm::World& world) {
    ToyRun run{.options = options, .steps = 40};
    run.after = [&](comm::World& w, Sync&, ToyModel& model, int64_t step) {
      if (w.rank() == 3 && step % 4 == 3 && step > 8) model.parameters[1].tensor.fill_(nonsense);
    };
    ends[static_cast<size_t>(world.rank())] = train_toy(world, run);
  });
  for (const ToyEnd& end : ends) EXPECT_TRUE(at::equal(end.global_model, ends[0].global_model));
  return ends[0];
}

TEST(Islands, OutliveALiar) {
  const at::Tensor honest = with_a_liar(MergeKind::median, 0).global_model;
  EXPECT_LT(furthest(with_a_liar(MergeKind::median, 1e6F).global_model, honest), 1);
  EXPECT_LT(furthest(with_a_liar(MergeKind::trim, 1e6F).global_model, honest), 1);
  EXPECT_GT(furthest(with_a_liar(MergeKind::mean, 1e6F).global_model, honest), 1e3);
  for (const MergeKind rule : {MergeKind::mean, MergeKind::clip, MergeKind::trim, MergeKind::median})
    EXPECT_TRUE(std::isfinite(with_a_liar(rule, std::nanf("")).global_model.norm().item<double>()))
        << base::enum_name(kMergeKindNames, rule);
}

TEST(Islands, RefuseMessagesOfAnotherRecipe) {
  // One of three has another outer rate: its messages are refused, and it refuses those of the others. Nobody waits for ever.
  std::vector<ToyEnd> ends(3);
  comm::LocalNetwork network(3, {.seed = 4});
  const auto errors = network.run([&](comm::World& world) {
    SyncOptions options{.kind = "diloco"};
    options.outer = {.every = 4, .outer_lr = world.rank() == 2 ? 0.5 : 0.7, .outer_momentum = 0.9, .outer_warmup = 0};
    options.exchange.timeout_s = 1;
    ends[static_cast<size_t>(world.rank())] = train_toy(world, {.options = options, .steps = 8});
  });
  EXPECT_EQ(errors[0], nullptr);
  EXPECT_EQ(errors[1], nullptr);
  EXPECT_TRUE(at::equal(ends[0].global_model, ends[1].global_model));
}

}  // namespace
}  // namespace cairn::sync
