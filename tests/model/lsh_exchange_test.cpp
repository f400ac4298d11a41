#include "model/experts/lsh_exchange.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/call.h"
#include "model/saved.h"

namespace cairn::model {
namespace {

class NoWeights final : public Weights {
 public:
  at::Tensor get(mesh::ParamId) const override { return {}; }
};

// Rows stay here; says how many passed each way.
class CountingExchange final : public ExpertExchange {
 public:
  explicit CountingExchange(std::vector<int64_t>& passed) : passed_(passed) {}
  std::unique_ptr<ExpertRoute> begin(const ExpertRequest& request, const Call&) const override { return route(request); }
  std::unique_ptr<ExpertRoute> resume(const ExpertRequest& request, Saved& saved, const Call&) const override {
    EXPECT_TRUE(saved.has("route.inside"));
    return route(request);
  }

 private:
  class Route final : public ExpertRoute {
   public:
    Route(const kernels::RowGroups& groups, std::vector<int64_t>& passed) : groups_(groups), passed_(passed) {}
    const kernels::RowGroups& local_groups() override { return groups_; }
    ExpertRows dispatch(const at::Tensor& rows) override { return pass(rows); }
    ExpertRows combine(const at::Tensor& results) override { return pass(results); }
    ExpertRows combine_backward(const at::Tensor& gradient) override { return pass(gradient); }
    ExpertRows dispatch_backward(const at::Tensor& gradient) override { return pass(gradient); }
    void save(Saved& into) override { into.put("route.inside", at::zeros({1})); }

   private:
    ExpertRows pass(const at::Tensor& rows) {
      EXPECT_EQ(rows.size(0), groups_.rows());
      passed_.push_back(rows.size(0));
      return {.rows = rows};
    }
    kernels::RowGroups groups_;
    std::vector<int64_t>& passed_;
  };
  std::unique_ptr<ExpertRoute> route(const ExpertRequest& request) const { return std::make_unique<Route>(request.groups, passed_); }
  std::vector<int64_t>& passed_;
};

at::Tensor gaussian_rows(int64_t rows, int64_t width, uint64_t seed) {
  const at::Tensor x = at::empty({rows, width}, at::kFloat);
  base::Random(seed).fill_normal({x.data_ptr<float>(), static_cast<size_t>(x.numel())});
  return x;
}

// Groups of equal rows, slightly moved.
at::Tensor similar_rows(int64_t rows, int64_t width) {
  at::Tensor x = gaussian_rows(rows, width, 1) * 0.01;
  for (int64_t i = 0; i < rows; ++i) x[i].add_(gaussian_rows(1, width, 50 + static_cast<uint64_t>(i % 3))[0]);
  return x;
}

struct WithCall {
  NoWeights weights;
  Buffers buffers;
  mesh::Axes axes;
  Call call{.weights = weights, .buffers = buffers, .axes = axes};
};

const LshOptions kFourHashes{.hashes = 4, .hash_dim = 6};

TEST(LshExchange, MovesCentroidsBothWaysInForwardAndBackward) {
  std::vector<int64_t> passed;
  const auto exchange = make_lsh_exchange(std::make_unique<CountingExchange>(passed), 8, kFourHashes);
  const WithCall with;
  const at::Tensor rows = similar_rows(30, 8), dy = gaussian_rows(30, 8, 9);
  const ExpertRequest request{.block = "layers.0.mlp", .weight = {0}, .groups = kernels::RowGroups(std::vector<int64_t>{12, 0, 18})};
  const RowClusters clusters = cluster_rows(lsh_keys(rows, lsh_rotations(8, kFourHashes), kFourHashes), request.groups);
  const at::Tensor c = centroids_of(rows, clusters);
  ASSERT_LT(clusters.size(), 15);

  Saved saved;
  const auto route = exchange->begin(request, with.call);
  const ExpertRows sent = route->dispatch(rows);
  sent.ready.wait();
  EXPECT_TRUE(at::equal(sent.rows, c));
  EXPECT_EQ(route->local_groups().host(), clusters.groups.host());
  const ExpertRows results = route->combine(sent.rows * 3);
  results.ready.wait();
  EXPECT_TRUE(at::equal(results.rows, restore_rows(c * 3, rows, c, clusters, kFourHashes)));
  route->save(saved);

  const auto back = exchange->resume(request, saved, with.call);
  EXPECT_EQ(back->local_groups().host(), clusters.groups.host());
  const at::Tensor given = dy.clone();
  const ExpertRows gradients = back->combine_backward(given);
  given.zero_();  // the caller's memory is its own again
  gradients.ready.wait();
  const at::Tensor g = centroid_gradients(dy, clusters);
  EXPECT_TRUE(at::equal(gradients.rows, g));
  const ExpertRows drows = back->dispatch_backward(gradients.rows * 3);
  drows.ready.wait();
  EXPECT_TRUE(at::equal(drows.rows, row_gradients(g * 3, dy, clusters, kFourHashes)));
  EXPECT_EQ(passed, std::vector<int64_t>(4, clusters.size()));
  const auto metrics = exchange->take_metrics();
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_EQ(metrics[0].first, "expert_compression");
  EXPECT_DOUBLE_EQ(metrics[0].second, static_cast<double>(clusters.size()) / 30);
  EXPECT_TRUE(exchange->take_metrics().empty());
}

TEST(LshExchange, LeavesRowsAsTheyAreOutsideOfTraining) {
  std::vector<int64_t> passed;
  const auto exchange = make_lsh_exchange(std::make_unique<CountingExchange>(passed), 8, kFourHashes);
  WithCall with;
  with.call.needs = {.input = false, .weights = false};
  const at::Tensor rows = similar_rows(30, 8);
  const auto route = exchange->begin({"layers.0.mlp", {0}, kernels::RowGroups(std::vector<int64_t>{30})}, with.call);
  const ExpertRows sent = route->dispatch(rows), results = route->combine(sent.rows * 2);
  EXPECT_TRUE(at::equal(results.rows, rows * 2));
  EXPECT_EQ(passed, (std::vector<int64_t>{30, 30}));
}

TEST(LshExchange, KnowsWhatArrivesOnlyAfterDispatch) {
  std::vector<int64_t> passed;
  const auto exchange = make_lsh_exchange(std::make_unique<CountingExchange>(passed), 8, kFourHashes);
  const WithCall with;
  const auto route = exchange->begin({"layers.0.mlp", {0}, kernels::RowGroups(std::vector<int64_t>{1})}, with.call);
  EXPECT_THROW(route->local_groups(), Error);
}

}  // namespace
}  // namespace cairn::model
