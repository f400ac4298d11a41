// Rows to the ranks of their experts and back, on threads: every row meets its expert once, and its result returns to its place.
#include "parallel/experts/expert_exchange.h"

#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "model/call.h"
#include "model/saved.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kWidth = 5;

// Weights that say where they lie, and nothing else.
class Placed final : public model::Weights {
 public:
  explicit Placed(mesh::Ragged experts) : placement_{{{"ep", std::move(experts)}}} {}
  at::Tensor get(mesh::ParamId) const override { return {}; }
  const mesh::Placement& placement(mesh::ParamId) const override { return placement_; }

 private:
  mesh::Placement placement_;
};

struct ExchangeCase {
  std::string name;
  mesh::Ragged experts;
  int ranks;
  ExpertLayoutOptions options = {};
  bool one_has_none = false;  // a rank without rows
};

mesh::Ragged owned_by(const std::vector<int>& owners) {
  mesh::Ragged table;
  for (const int owner : owners) table.owners.push_back({owner});
  return table;
}

std::vector<int64_t> counts_of(int rank, size_t experts, bool none) {
  std::vector<int64_t> counts;
  for (size_t e = 0; e < experts; ++e) counts.push_back(none ? 0 : static_cast<int64_t>((3 * e + 5 * static_cast<size_t>(rank)) % 4));
  return counts;
}

at::Tensor rows_of(int rank, int64_t rows, uint64_t seed) {
  const at::Tensor result = at::empty({rows, kWidth}, at::kFloat);
  kernels::fill_normal(result.view({-1}), base::Random(seed).for_index(static_cast<uint64_t>(rank)), 0, 1);
  return result;
}

// What expert e does to its rows; its derivative is e + 1.
at::Tensor by_expert(const at::Tensor& rows, const std::vector<int64_t>& counts, const std::vector<int64_t>& ids, bool derivative) {
  at::Tensor result = rows.clone();
  int64_t at = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    at::Tensor own = result.narrow(0, at, counts[k]);
    own.mul_(static_cast<double>(ids[k] + 1));
    if (!derivative) own.add_(static_cast<double>(ids[k]));
    at += counts[k];
  }
  return result;
}

std::vector<int64_t> all_ids(size_t experts) {
  std::vector<int64_t> ids;
  for (size_t e = 0; e < experts; ++e) ids.push_back(static_cast<int64_t>(e));
  return ids;
}

class ExpertExchanges : public testing::TestWithParam<ExchangeCase> {};

TEST_P(ExpertExchanges, BringRowsToTheirExpertsAndResultsBack) {
  const ExchangeCase& c = GetParam();
  harness::on_ranks(c.ranks, [&](comm::World& world) {
    const int me = world.rank();
    const auto exchange = make_expert_exchange(world.everyone(), c.options);
    const Placed weights(c.experts);
    model::Buffers buffers;
    mesh::Axes axes;
    axes.put("ep", world.everyone());
    const model::Call call{.weights = weights, .buffers = buffers, .axes = axes};
    const std::vector<int64_t> counts = counts_of(me, c.experts.owners.size(), c.one_has_none && me == 1);
    const model::ExpertRequest request{.block = "layers.0.mlp", .weight = {0}, .groups = kernels::RowGroups(counts)};
    const std::vector<int64_t> ids = mesh::ids_of(c.experts, me), all = all_ids(counts.size());
    const at::Tensor rows = rows_of(me, request.groups.rows(), 1), gradient = rows_of(me, request.groups.rows(), 2);

    model::Saved saved;
    const auto route = exchange->begin(request, call);
    std::vector<int64_t> expected(ids.size(), 0);
    for (size_t k = 0; k < ids.size(); ++k)
      for (int rank = 0; rank < c.ranks; ++rank)
        expected[k] += counts_of(rank, counts.size(), c.one_has_none && rank == 1)[static_cast<size_t>(ids[k])];
    EXPECT_EQ(route->local_groups().host(), expected);
    const model::ExpertRows arrived = route->dispatch(rows);
    arrived.ready.wait();
    const model::ExpertRows results = route->combine(by_expert(arrived.rows, expected, ids, false));
    results.ready.wait();
    EXPECT_TRUE(at::equal(results.rows, by_expert(rows, counts, all, false)));
    route->save(saved);

    const auto back = exchange->resume(request, saved, call);
    EXPECT_EQ(back->local_groups().host(), expected);
    const model::ExpertRows of_results = back->combine_backward(gradient);
    of_results.ready.wait();
    const model::ExpertRows of_rows = back->dispatch_backward(by_expert(of_results.rows, expected, ids, true));
    of_rows.ready.wait();
    EXPECT_TRUE(at::equal(of_rows.rows, by_expert(gradient, counts, all, true)));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Every, ExpertExchanges,
    testing::Values(
        ExchangeCase{"even", mesh::even_ragged(0, 4, 2), 2}, ExchangeCase{"six_on_four", mesh::even_ragged(0, 6, 4), 4},
        ExchangeCase{"mixed_owners", owned_by({2, 0, 1, 0, 2, 1, 0}), 3},
        ExchangeCase{"a_rank_without_experts", owned_by({0, 2, 0, 2, 2}), 3},
        ExchangeCase{"a_rank_without_rows", mesh::even_ragged(0, 5, 3), 3, {}, true},
        ExchangeCase{"by_node", mesh::even_ragged(0, 9, 4), 4, {.dispatch = ExpertDispatch::hierarchical, .node_ranks = 2}},
        ExchangeCase{
            "by_node_six", owned_by({5, 0, 3, 4, 1, 2, 2, 0}), 6, {.dispatch = ExpertDispatch::hierarchical, .node_ranks = 3}, true}),
    [](const auto& c) { return c.param.name; });

TEST(ExpertExchange, EndsOnAllRanksWhereCountsDoNotAddUp) {
  std::mutex mutex;
  std::vector<std::string> said;
  harness::on_ranks(3, [&](comm::World& world) {
    const auto exchange = make_expert_exchange(world.everyone(), {});
    const Placed weights(mesh::even_ragged(0, 3, 3));
    model::Buffers buffers;
    mesh::Axes axes;
    axes.put("ep", world.everyone());
    const std::vector<int64_t> counts = world.rank() == 1 ? std::vector<int64_t>{4, -1, 2} : std::vector<int64_t>{1, 1, 1};
    const auto route =
        exchange->begin({"layers.2.mlp", {0}, kernels::RowGroups(counts)}, {.weights = weights, .buffers = buffers, .axes = axes});
    try {
      route->local_groups();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      said.emplace_back(error.what());
    }
  });
  ASSERT_EQ(said.size(), 3u);
  for (const std::string& one : said)
    EXPECT_NE(one.find("layers.2.mlp: the count matrix does not add up: rank 1 announces -1 rows for expert 1"), std::string::npos) << one;
}

TEST(ExpertExchange, KeepsRowsWhereThereIsNoAxis) {
  harness::on_ranks(1, [&](comm::World& world) {
    const auto exchange = make_expert_exchange(world.everyone(), {});
    const Placed weights(mesh::even_ragged(0, 3, 1));
    model::Buffers buffers;
    const mesh::Axes axes;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = axes};
    const auto route = exchange->begin({"mlp", {0}, kernels::RowGroups(std::vector<int64_t>{2, 0, 1})}, call);
    const at::Tensor rows = rows_of(0, 3, 1);
    EXPECT_TRUE(route->dispatch(rows).rows.is_same(rows));
  });
}

}  // namespace
}  // namespace cairn::parallel
