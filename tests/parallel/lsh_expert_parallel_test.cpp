// Centroids over the real exchange between ranks: bytes both ways, and exactness where every row is its own centroid.
#include <mutex>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/call.h"
#include "model/experts/lsh_exchange.h"
#include "model/saved.h"
#include "parallel/experts/expert_exchange.h"

namespace cairn::parallel {
namespace {

class EvenlyPlaced final : public model::Weights {
 public:
  EvenlyPlaced(int64_t experts, int ranks) : placement_{{{"ep", mesh::even_ragged(0, experts, ranks)}}} {}
  at::Tensor get(mesh::ParamId) const override { return {}; }
  const mesh::Placement& placement(mesh::ParamId) const override { return placement_; }

 private:
  mesh::Placement placement_;
};

constexpr int64_t kRowWidth = 16, kExperts = 6;

at::Tensor random_rows(int64_t rows, uint64_t seed) {
  const at::Tensor x = at::empty({rows, kRowWidth}, at::kFloat);
  base::Random(seed).fill_normal({x.data_ptr<float>(), static_cast<size_t>(x.numel())});
  return x;
}

// What every expert does, so that a rank can compute it for itself: y = tanh(x), dx = dy (1 - y^2).
struct Passed {
  at::Tensor results, gradients;
};
Passed pass_through(const model::ExpertExchange& exchange, const at::Tensor& rows, const at::Tensor& dy, const std::vector<int64_t>& counts,
                    const model::Call& call) {
  const model::ExpertRequest request{.block = "layers.0.mlp", .weight = {0}, .groups = kernels::RowGroups(counts)};
  model::Saved saved;
  const auto route = exchange.begin(request, call);
  const model::ExpertRows sent = route->dispatch(rows);
  sent.ready.wait();
  const at::Tensor y = at::tanh(sent.rows);
  const model::ExpertRows results = route->combine(y);
  results.ready.wait();
  route->save(saved);
  const auto back = exchange.resume(request, saved, call);
  const model::ExpertRows of_results = back->combine_backward(dy);
  of_results.ready.wait();
  const model::ExpertRows of_rows = back->dispatch_backward(of_results.rows * (1 - y * y));
  of_rows.ready.wait();
  return {results.rows, of_rows.rows};
}

struct Compared {
  double rate = 0, results = 0, gradients = 0;  // centroids over rows on rank 0; largest differences from rows as they are
  int64_t plain_bytes = 0, bytes = 0;           // of activations, that all ranks sent
  int64_t plain_expected = 0, expected = 0;     // four times the rows, or centroids, whose expert lies elsewhere
};

// `kinds`: rows are near so many directions; 0: they are random.
Compared compare(int ranks, int64_t kinds, const model::LshOptions& lsh, const ExpertLayoutOptions& options) {
  Compared found;
  std::mutex mutex;
  harness::on_ranks(ranks, [&](comm::World& world) {
    const auto me = static_cast<uint64_t>(world.rank());
    const auto plain = make_expert_exchange(world.group(world.everyone().ranks(), "plain"), options);
    const auto compressed = model::make_lsh_exchange(make_expert_exchange(world.everyone(), options), kRowWidth, lsh);
    const EvenlyPlaced weights(kExperts, ranks);
    model::Buffers buffers;
    mesh::Axes axes;
    axes.put("ep", world.everyone());
    const model::Call call{.weights = weights, .buffers = buffers, .axes = axes};
    std::vector<int64_t> counts;
    for (int64_t e = 0; e < kExperts; ++e) counts.push_back((world.rank() + e) % 4 == 0 ? 0 : 12 + 5 * e);
    const int64_t n = kernels::RowGroups(counts).rows();
    at::Tensor rows = random_rows(n, 100 + me);
    if (kinds > 0) {
      const at::Tensor centers = random_rows(kinds, 7);
      rows = rows * 0.02 + centers.repeat({n / kinds + 1, 1}).narrow(0, 0, n);
    }
    const at::Tensor dy = random_rows(n, 200 + me);
    const auto booked = [&] { return world.ledger().bytes_sent(world.rank(), comm::Purpose::activation); };
    const model::RowClusters clusters =
        model::cluster_rows(model::lsh_keys(rows, model::lsh_rotations(kRowWidth, lsh), lsh), kernels::RowGroups(counts));
    const Passed expected = pass_through(*plain, rows, dy, counts, call);
    const int64_t before = booked();
    const Passed got = pass_through(*compressed, rows, dy, counts, call);
    const std::lock_guard lock(mutex);
    for (int64_t e = 0; e < kExperts; ++e) {
      if (mesh::even_ragged(0, kExperts, ranks).owners[static_cast<size_t>(e)].front() == world.rank()) continue;
      found.plain_expected += 4 * counts[static_cast<size_t>(e)] * kRowWidth * 4;
      found.expected += 4 * clusters.groups.host()[static_cast<size_t>(e)] * kRowWidth * 4;
    }
    found.plain_bytes += before, found.bytes += booked() - before;
    if (world.rank() == 0) found.rate = compressed->take_metrics().at(0).second;
    found.results = std::max(found.results, (got.results - expected.results).abs().max().item<double>());
    found.gradients = std::max(found.gradients, (got.gradients - expected.gradients).abs().max().item<double>());
  });
  return found;
}

TEST(LshExpertParallel, SingletonsEqualRowsAsTheyAre) {
  for (const ExpertDispatch dispatch : {ExpertDispatch::flat, ExpertDispatch::hierarchical}) {
    const Compared found = compare(4, 0, {.hashes = 10, .hash_dim = 16}, {.dispatch = dispatch, .node_ranks = 2});
    EXPECT_EQ(found.rate, 1);
    EXPECT_EQ(found.bytes, found.plain_bytes);
    EXPECT_LT(found.results, 1e-6);
    EXPECT_LT(found.gradients, 1e-6);
  }
}

TEST(LshExpertParallel, SendsTheShareOfCentroidsBothWays) {
  const Compared found = compare(3, 3, {.hashes = 4, .hash_dim = 8}, {});
  EXPECT_LT(found.rate, 0.4);
  EXPECT_LT(found.results, 0.2);
  EXPECT_GT(found.results, 0);
  EXPECT_EQ(found.plain_bytes, found.plain_expected);
  EXPECT_EQ(found.bytes, found.expected);
  EXPECT_LT(static_cast<double>(found.bytes), 0.4 * static_cast<double>(found.plain_bytes));
}

}  // namespace
}  // namespace cairn::parallel
