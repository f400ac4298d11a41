#include "data/search/centroid_assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include <ATen/core/grad_mode.h>

#include "data/search/device_scores.h"
#include "data/search/score_scan.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::data {
namespace {

constexpr int64_t kTileCentroids = 1024;             // of one product on the CPU
constexpr int64_t kDeviceScores = int64_t{1} << 28;  // of one product on a device: 1 GB

// Centroids with what is subtracted from scalar products: half of their squared lengths, on the sphere nothing.
class ScoredCentroids {
 public:
  ScoredCentroids(const at::Tensor& centroids, bool spherical)
      : centroids_(centroids), spherical_(spherical), offsets_(static_cast<size_t>(centroids.size(0)), 0) {
    float longest = 0;
    for (int64_t c = 0; c < count(); ++c) {
      const float square = scalar_product(row(c), row(c), dim());
      if (!spherical) offsets_[static_cast<size_t>(c)] = square / 2;
      longest = std::max(longest, square);
    }
    longest_ = std::sqrt(longest);
  }

  int64_t count() const { return centroids_.size(0); }
  int64_t dim() const { return centroids_.size(1); }
  const at::Tensor& centroids() const { return centroids_; }
  const std::vector<float>& offsets() const { return offsets_; }

  // How far a score in fp32 of this row may be off.
  float error(const float* x) const {
    const float length = std::sqrt(scalar_product(x, x, dim()));
    return product_error(dim()) * longest_ * (spherical_ ? length : length + longest_);
  }

  // The one of these, ascending, with the largest exact score.
  template <typename Columns>
  int32_t best_of(const float* x, const Columns& columns) const {
    double most = -std::numeric_limits<double>::infinity();
    int32_t which = 0;
    for (const auto column : columns) {
      const double score =
          static_cast<double>(scalar_product(x, row(column), dim())) - static_cast<double>(offsets_[static_cast<size_t>(column)]);
      if (score > most) most = score, which = static_cast<int32_t>(column);
    }
    return which;
  }

 private:
  const float* row(int64_t c) const { return centroids_.const_data_ptr<float>() + c * dim(); }

  const at::Tensor& centroids_;
  bool spherical_;
  std::vector<float> offsets_;
  float longest_ = 0;
};

// A block on the CPU: products with tiles of centroids, of which the two largest scores of each row stay.
class CpuScores {
 public:
  explicit CpuScores(const ScoredCentroids& centroids) : centroids_(centroids) {
    for (int64_t first = 0; first < centroids.count(); first += kTileCentroids)
      tiles_.push_back(centroids.centroids().narrow(0, first, std::min(kTileCentroids, centroids.count() - first)).t());
  }

  void settle(AssignedBlock& block) const {
    const auto count = static_cast<size_t>(block.count);
    std::vector<float> best(count, -std::numeric_limits<float>::infinity()), second = best;
    block.which.assign(count, 0);
    at::Tensor scores;
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const int64_t first = static_cast<int64_t>(t) * kTileCentroids;
      scores = at::mm(block.rows, tiles_[t]);
      raise_to_largest(scores.const_data_ptr<float>(), block.count, scores.size(1), centroids_.offsets().data() + first,
                       static_cast<int32_t>(first), best.data(), second.data(), block.which.data());
    }
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < block.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const float* x = block.rows.const_data_ptr<float>() + i * centroids_.dim();
      const float error = centroids_.error(x);
      if (best[at] - second[at] > 2 * error) continue;
      columns.clear();
      if (tiles_.size() == 1)
        reaching(scores.const_data_ptr<float>() + i * centroids_.count(), 0, centroids_.count(), best[at] - 2 * error, columns);
      else
        reaching_of_all(block.rows.narrow(0, i, 1), best[at] - 4 * error, columns);  // a product of one row rounds in another way
      block.which[at] = centroids_.best_of(x, columns);
    }
  }

 private:
  void reaching(const float* scores, int64_t first, int64_t count, float bound, std::vector<int32_t>& into) const {
    for (int64_t c = 0; c < count; ++c)
      if (scores[c] - centroids_.offsets()[static_cast<size_t>(first + c)] >= bound) into.push_back(static_cast<int32_t>(first + c));
  }
  void reaching_of_all(const at::Tensor& row, float bound, std::vector<int32_t>& into) const {
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const at::Tensor scores = at::mm(row, tiles_[t]);
      reaching(scores.const_data_ptr<float>(), static_cast<int64_t>(t) * kTileCentroids, scores.size(1), bound, into);
    }
  }

  const ScoredCentroids& centroids_;
  std::vector<at::Tensor> tiles_;
};

// Many blocks on a device: one product, of which all scores near the largest of their row come back.
void assign_on_device(const RowSource& rows, const BlockShare& share, const ScoredCentroids& centroids, at::Device device,
                      const std::function<void(const AssignedBlock&, int)>& act) {
  const at::Tensor there = centroids.centroids().to(device), offsets = numbers_beside(centroids.offsets(), there);
  const int64_t fitting = kDeviceScores / centroids.count() / kAssignedRows;
  const int64_t blocks = std::clamp<int64_t>(fitting, 1, device_tile_rows(centroids.dim()) / kAssignedRows);
  for (int64_t block = share.first; block < share.end; block += blocks) {
    const int64_t first = block * kAssignedRows, count = std::min({blocks, share.end - block}) * kAssignedRows;
    const at::Tensor read = read_in_parallel(rows, first, std::min(count, rows.rows() - first));
    const int64_t dim = centroids.dim(), number = read.size(0);
    std::vector<float> twice_errors(static_cast<size_t>(number));
    kernels::parallel_rows(number, kAssignedRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        twice_errors[static_cast<size_t>(i)] = 2 * centroids.error(read.const_data_ptr<float>() + i * dim);
    });
    const at::Tensor scores = full_product(read.to(device), there).sub_(offsets);
    const ReachedColumns reached = columns_reaching(scores, scores.amax(1) - numbers_beside(twice_errors, scores));
    kernels::parallel_tasks((number + kAssignedRows - 1) / kAssignedRows, [&](int64_t task, int thread) {
      const at::NoGradGuard no_grad;
      AssignedBlock one{.first = first + task * kAssignedRows, .count = std::min(kAssignedRows, number - task * kAssignedRows)};
      one.rows = read.narrow(0, task * kAssignedRows, one.count);
      for (int64_t i = 0; i < one.count; ++i) {
        const std::span<const int64_t> columns = reached.of_row(task * kAssignedRows + i);
        one.which.push_back(columns.size() == 1 ? static_cast<int32_t>(columns[0])
                                                : centroids.best_of(one.rows.const_data_ptr<float>() + i * dim, columns));
      }
      act(one, thread);
    });
  }
}

int64_t blocks_with(int64_t rows) { return (rows + kAssignedRows - 1) / kAssignedRows; }

}  // namespace

BlockShare block_share(const RowSource& rows, const RowShare& share) {
  if (share.count < 0) return {0, blocks_with(rows.rows())};
  return {blocks_with(share.first), blocks_with(share.first + share.count)};
}

void assign_centroids(const RowSource& rows, const BlockShare& share, const at::Tensor& centroids, bool spherical,
                      const std::optional<at::Device>& device, const std::function<void(const AssignedBlock& block, int thread)>& act) {
  const ScoredCentroids scored(centroids, spherical);
  if (device) return assign_on_device(rows, share, scored, *device, act);
  const CpuScores scores(scored);
  kernels::parallel_tasks(share.end - share.first, [&](int64_t task, int thread) {
    const at::NoGradGuard no_grad;
    AssignedBlock block{.first = (share.first + task) * kAssignedRows};
    block.count = std::min(kAssignedRows, rows.rows() - block.first);
    block.rows = rows.read(block.first, block.count);
    scores.settle(block);
    act(block, thread);
  });
}

}  // namespace cairn::data
