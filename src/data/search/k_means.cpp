// Lloyd's algorithm. Every row goes to its nearest centroid (centroid_assignment.h: matrix products in blocks); then
//
//   centroid_j = mean of the rows of cluster j      (on the sphere: scaled to unit length)
//
// The sums are exact: with |x| <= X and M rows, entries are rounded to multiples of u = 2^(ceil(log2(M X)) - 52), so that every partial sum
// is a multiple of u below 2^53 u, which a double holds without rounding. So neither threads nor ranks change them.
//
// k-means++ (Arthur and Vassilvitskii 2007) draws each further start with probability proportional to its squared distance to the nearest
// start so far, from a sample of the rows that the seed decides.
#include "data/search/k_means.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/random.h"
#include "data/search/centroid_assignment.h"
#include "data/search/score_scan.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::data {
namespace {

int64_t blocks_of(int64_t rows) { return (rows + kAssignedRows - 1) / kAssignedRows; }

class Clustering {
 public:
  Clustering(const RowSource& rows, const KMeansOptions& options, const RowShare& share)
      : rows_(rows), options_(options), share_(share), blocks_(block_share(rows, share)) {
    const int64_t k = options.clusters;
    if (k < 1 || k > rows.rows()) base::fail_input("{} clusters of {} rows: give at least one row to each cluster", k, rows.rows());
    measure_rows();
  }

  KMeans run(const base::Random& random) {
    at::Tensor centroids = options_.start.defined() ? options_.start.to(at::kFloat).contiguous().clone() : start(random);
    CAIRN_CHECK(centroids.dim() == 2 && centroids.size(0) == options_.clusters && centroids.size(1) == rows_.dim(), "start of k-means");
    if (options_.spherical) scale_to_unit(centroids);
    labels_.assign(static_cast<size_t>(rows_.rows()), -1);
    assign(centroids);
    int64_t iteration = 0;
    for (; iteration < options_.iterations; ++iteration) {
      move(centroids);
      assign(centroids);
      if (options_.progress) options_.progress(iteration + 1, options_.iterations);
      if (static_cast<double>(changed_) <= options_.changed_max * static_cast<double>(rows_.rows())) {
        ++iteration;
        break;
      }
    }
    const double inertia_now = inertia(centroids);
    share_labels();
    return {.centroids = centroids, .labels = labels_, .sizes = sizes_, .inertia = inertia_now, .iterations = iteration};
  }

 private:
  void add_ranks(std::span<double> numbers) const {
    if (share_.add_ranks) share_.add_ranks(numbers);
  }

  // The power of two that sums are rounded to.
  void measure_rows() {
    std::vector<double> largest(static_cast<size_t>(blocks_of(rows_.rows())));
    kernels::parallel_tasks(blocks_.end - blocks_.first, [&](int64_t task, int) {
      const int64_t block = blocks_.first + task, first = block * kAssignedRows, count = std::min(kAssignedRows, rows_.rows() - first);
      const at::Tensor part = rows_.read(first, count);
      const auto* x = part.const_data_ptr<float>();
      float most = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float* row = x + i * rows_.dim();
        if (!std::isfinite(scalar_product(row, row, rows_.dim()))) most = INFINITY;
      }
      for (int64_t i = 0; i < count * rows_.dim(); ++i) most = std::max(most, std::abs(x[i]));
      largest[static_cast<size_t>(block)] = static_cast<double>(most);
    });
    add_ranks(largest);
    const double most = *std::ranges::max_element(largest);
    if (!std::isfinite(most)) base::fail_input("rows of vectors hold numbers that are not finite: make them again");
    const int exponent = static_cast<int>(std::ceil(std::log2(std::max(most, 1e-30) * static_cast<double>(rows_.rows()))));
    magic_ = 1.5 * std::ldexp(1.0, exponent);  // 1.5 * 2^52 u with u = 2^(exponent - 52)
  }

  // k-means++ on a sample.
  at::Tensor start(const base::Random& random) const {
    const int64_t k = options_.clusters, count = std::min(rows_.rows(), std::max<int64_t>(k * options_.sample_per_cluster, 256));
    const at::Tensor sample = draw_sample(random, count);
    const auto* x = sample.const_data_ptr<float>();
    const int64_t dim = rows_.dim();
    const base::Random picks = random.for_purpose("k-means++");
    std::vector<double> apart(static_cast<size_t>(count), std::numeric_limits<double>::infinity());
    std::vector<double> until(static_cast<size_t>(count));
    const at::Tensor centroids = at::empty({k, dim});
    auto chosen = static_cast<int64_t>(picks.below(0, static_cast<uint64_t>(count)));
    for (int64_t c = 0;; ++c) {
      const float* one = x + chosen * dim;
      std::copy_n(one, dim, centroids.mutable_data_ptr<float>() + c * dim);
      if (c + 1 == k) break;
      kernels::parallel_rows(count, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double& least = apart[static_cast<size_t>(i)];
          if (least > 0) least = std::min(least, static_cast<double>(squared_distance(x + i * dim, one, dim)));
        }
      });
      std::partial_sum(apart.begin(), apart.end(), until.begin());
      if (until.back() > 0) {
        const double at = picks.uniform(static_cast<uint64_t>(c) + 1) * until.back();
        chosen = std::min<int64_t>(std::upper_bound(until.begin(), until.end(), at) - until.begin(), count - 1);
      } else {  // all rows of the sample are starts already
        chosen = (chosen + 1) % count;
      }
    }
    return centroids;
  }

  at::Tensor draw_sample(const base::Random& random, int64_t count) const {
    std::vector<int64_t> numbers(static_cast<size_t>(rows_.rows()));
    std::iota(numbers.begin(), numbers.end(), 0);
    if (count < rows_.rows()) {  // the first of a random order
      const base::Random draws = random.for_purpose("k-means sample");
      for (int64_t i = 0; i < count; ++i)
        std::swap(numbers[static_cast<size_t>(i)],
                  numbers[static_cast<size_t>(i) + draws.below(static_cast<uint64_t>(i), static_cast<uint64_t>(rows_.rows() - i))]);
      numbers.resize(static_cast<size_t>(count));
      std::ranges::sort(numbers);
    }
    return chosen_rows(rows_, std::move(numbers))->read(0, count);
  }

  void assign(const at::Tensor& centroids) {
    const int64_t k = options_.clusters, dim = rows_.dim();
    const auto threads = static_cast<size_t>(at::get_num_threads());
    std::vector<std::vector<double>> sums(threads), sizes(threads);
    std::vector<double> changed_by_block(static_cast<size_t>(blocks_of(rows_.rows())));
    assign_centroids(rows_, blocks_, centroids, options_.spherical, options_.device, [&](const AssignedBlock& block, int thread) {
      std::vector<double>& sum = sums[static_cast<size_t>(thread)];
      std::vector<double>& size = sizes[static_cast<size_t>(thread)];
      if (sum.empty()) sum.resize(static_cast<size_t>(k * dim)), size.resize(static_cast<size_t>(k));
      double changed = 0;
      for (int64_t i = 0; i < block.count; ++i) {
        const int32_t label = block.which[static_cast<size_t>(i)];
        int32_t& old = labels_[static_cast<size_t>(block.first + i)];
        changed += old != label;
        old = label;
        size[static_cast<size_t>(label)] += 1;
        add_rounded(block.rows.const_data_ptr<float>() + i * dim, dim, magic_, sum.data() + label * dim);
      }
      changed_by_block[static_cast<size_t>(block.first / kAssignedRows)] = changed;
    });
    sums_.assign(static_cast<size_t>(k * dim + k), 0);
    for (size_t t = 0; t < threads; ++t) {
      for (size_t i = 0; i < sums[t].size(); ++i) sums_[i] += sums[t][i];
      for (size_t i = 0; i < sizes[t].size(); ++i) sums_[static_cast<size_t>(k * dim) + i] += sizes[t][i];
    }
    add_ranks(sums_);
    add_ranks(changed_by_block);
    changed_ = std::accumulate(changed_by_block.begin(), changed_by_block.end(), 0.0);
    sizes_.assign(static_cast<size_t>(k), 0);
    for (int64_t c = 0; c < k; ++c) sizes_[static_cast<size_t>(c)] = static_cast<int64_t>(sums_[static_cast<size_t>(k * dim + c)]);
  }

  // The sum of squared distances, block by block, so that ranks and threads add in the same order.
  double inertia(const at::Tensor& centroids) const {
    std::vector<double> by_block(static_cast<size_t>(blocks_of(rows_.rows())));
    kernels::parallel_tasks(blocks_.end - blocks_.first, [&](int64_t task, int) {
      const at::NoGradGuard no_grad;
      const int64_t block = blocks_.first + task, first = block * kAssignedRows, dim = rows_.dim();
      const at::Tensor part = rows_.read(first, std::min(kAssignedRows, rows_.rows() - first));
      for (int64_t i = 0; i < part.size(0); ++i)
        by_block[static_cast<size_t>(block)] +=
            static_cast<double>(squared_distance(part.const_data_ptr<float>() + i * dim,
                                                 centroids.const_data_ptr<float>() + labels_[static_cast<size_t>(first + i)] * dim, dim));
    });
    add_ranks(by_block);
    return std::accumulate(by_block.begin(), by_block.end(), 0.0);
  }

  void move(const at::Tensor& centroids) const {
    const int64_t k = options_.clusters, dim = rows_.dim();
    auto* to = centroids.mutable_data_ptr<float>();
    std::vector<int64_t> left = sizes_;
    for (int64_t c = 0; c < k; ++c) {
      const auto size = static_cast<double>(sizes_[static_cast<size_t>(c)]);
      for (int64_t i = 0; size > 0 && i < dim; ++i) to[c * dim + i] = static_cast<float>(sums_[static_cast<size_t>(c * dim + i)] / size);
    }
    for (int64_t c = 0; c < k; ++c)
      if (sizes_[static_cast<size_t>(c)] == 0) split_largest(to, c, left);
    if (options_.spherical) scale_to_unit(centroids);
  }

  // Gives an empty cluster a centroid beside that of the largest one, which moves as much to the other side.
  void split_largest(float* centroids, int64_t empty, std::vector<int64_t>& sizes) const {
    constexpr float kApart = 1.0f / 1024;
    const auto largest = std::ranges::max_element(sizes) - sizes.begin();
    const int64_t dim = rows_.dim();
    float *from = centroids + largest * dim, *to = centroids + empty * dim;
    for (int64_t i = 0; i < dim; ++i) {
      const float side = i % 2 == 0 ? kApart : -kApart;
      to[i] = from[i] * (1 + side);
      from[i] *= 1 - side;
    }
    sizes[static_cast<size_t>(empty)] = sizes[static_cast<size_t>(largest)] / 2;
    sizes[static_cast<size_t>(largest)] -= sizes[static_cast<size_t>(empty)];
  }

  static void scale_to_unit(const at::Tensor& centroids) {
    auto* x = centroids.mutable_data_ptr<float>();
    const int64_t dim = centroids.size(1);
    for (int64_t c = 0; c < centroids.size(0); ++c) {
      const float square = scalar_product(x + c * dim, x + c * dim, dim);
      if (square > 0)
        for (int64_t i = 0; i < dim; ++i) x[c * dim + i] /= std::sqrt(square);
    }
  }

  // Every rank gets the labels of all rows.
  void share_labels() {
    if (!share_.add_ranks) return;
    std::vector<double> all(labels_.size());
    const auto end = static_cast<size_t>(std::min(blocks_.end * kAssignedRows, rows_.rows()));
    for (auto i = static_cast<size_t>(blocks_.first * kAssignedRows); i < end; ++i) all[i] = labels_[i];
    add_ranks(all);
    for (size_t i = 0; i < all.size(); ++i) labels_[i] = static_cast<int32_t>(all[i]);
  }

  const RowSource& rows_;
  const KMeansOptions& options_;
  const RowShare& share_;
  BlockShare blocks_;
  double magic_ = 0;
  std::vector<int32_t> labels_;
  std::vector<int64_t> sizes_;
  std::vector<double> sums_;  // of the rows of each cluster; then their numbers
  double changed_ = 0;
};

}  // namespace

KMeans k_means(const RowSource& rows, const KMeansOptions& options, const RowShare& share) {
  const at::NoGradGuard no_grad;
  Clustering clustering(rows, options, share);
  const base::Random random = base::Random(options.seed).for_purpose("k-means");
  std::optional<KMeans> best;
  for (int64_t restart = 0; restart < std::max<int64_t>(options.restarts, 1); ++restart) {
    KMeans found = clustering.run(random.for_index(static_cast<uint64_t>(restart)));
    if (!best || found.inertia < best->inertia) best = std::move(found);
  }
  return *std::move(best);
}

}  // namespace cairn::data
