#include "model/experts/lsh.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

constexpr int64_t kHashesMax = 16, kKeyBits = 64;
constexpr int64_t kRowsAtOnce = 256;  // of one product: fixed, so that rounding does not depend on the number of threads
constexpr uint64_t kRotationSeed = 0x15A4;

int64_t bits_of_hash(int64_t hash_dim) { return std::bit_width(static_cast<uint64_t>(2 * hash_dim - 1)); }

// One rotation into columns [first, first + hash_dim) of `out`, by modified Gram-Schmidt, twice.
void fill_rotation(float* out, int64_t embed, int64_t columns, int64_t first, int64_t hash_dim, const base::Random& random) {
  std::vector<std::vector<double>> basis;
  for (int64_t k = 0; k < hash_dim; ++k) {
    std::vector<double>& column = basis.emplace_back(static_cast<size_t>(embed));
    for (int64_t i = 0; i < embed; ++i)
      column[static_cast<size_t>(i)] = static_cast<double>(random.normal(static_cast<uint64_t>(k * embed + i)));
    for (int again = 0; again < 2; ++again) {
      for (int64_t j = 0; j < k; ++j) {
        const std::vector<double>& other = basis[static_cast<size_t>(j)];
        double dot = 0;
        for (size_t i = 0; i < column.size(); ++i) dot += column[i] * other[i];
        for (size_t i = 0; i < column.size(); ++i) column[i] -= dot * other[i];
      }
      double square = 0;
      for (const double value : column) square += value * value;
      for (double& value : column) value /= std::sqrt(square);
    }
    for (int64_t i = 0; i < embed; ++i) out[i * columns + first + k] = static_cast<float>(column[static_cast<size_t>(i)]);
  }
}

// Keys from projections [n, Q d'], on the CPU.
void pack_hashes(const float* projected, int64_t rows, const LshOptions& options, int64_t* keys) {
  const int64_t bits = bits_of_hash(options.hash_dim), width = options.hashes * options.hash_dim;
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t key = 0;
    for (int64_t q = 0; q < options.hashes; ++q) {
      const float* const of_hash = projected + row * width + q * options.hash_dim;
      int64_t best = 0;
      for (int64_t k = 1; k < options.hash_dim; ++k)
        if (std::abs(of_hash[k]) > std::abs(of_hash[best])) best = k;
      const auto vertex = static_cast<uint64_t>(of_hash[best] < 0 ? best + options.hash_dim : best);
      key |= vertex << (q * bits);
    }
    keys[row] = static_cast<int64_t>(key);
  }
}

at::Tensor keys_on_host(const at::Tensor& rows, const at::Tensor& rotations, const LshOptions& options) {
  const at::Tensor keys = at::empty({rows.size(0)}, at::kLong);
  const int64_t pieces = (rows.size(0) + kRowsAtOnce - 1) / kRowsAtOnce;
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kRowsAtOnce, count = std::min(kRowsAtOnce, rows.size(0) - first);
      const at::Tensor projected = at::mm(rows.narrow(0, first, count).to(at::kFloat), rotations);
      pack_hashes(projected.const_data_ptr<float>(), count, options, keys.data_ptr<int64_t>() + first);
    }
  });
  return keys;
}

at::Tensor keys_on_device(const at::Tensor& rows, const at::Tensor& rotations, const LshOptions& options) {
  const at::Tensor projected = at::mm(rows.to(at::kFloat), rotations).view({-1, options.hashes, options.hash_dim});
  const at::Tensor size = projected.abs(), index = at::arange(options.hash_dim, rows.options().dtype(at::kLong));
  const at::Tensor best = at::where(size == size.amax(-1, true), index, options.hash_dim).amin(-1, true);
  const at::Tensor vertex = (best + (projected.gather(-1, best) < 0).to(at::kLong) * options.hash_dim).squeeze(-1);
  const at::Tensor shift = at::arange(options.hashes, vertex.options()) * bits_of_hash(options.hash_dim);
  return vertex.bitwise_left_shift(shift).sum(-1);  // disjoint bits: the sum is their union
}

template <typename Sum, typename T>
void add_rows_in_order(Sum* out, const T* rows, const int64_t* order, int64_t count, int64_t width) {
  std::fill(out, out + width, Sum(0));
  for (int64_t k = 0; k < count; ++k) {
    const T* const row = rows + order[k] * width;
    for (int64_t i = 0; i < width; ++i) out[i] += static_cast<Sum>(row[i]);
  }
}

at::Tensor counts_of(const RowClusters& clusters) {
  return clusters.starts.narrow(0, 1, clusters.size()) - clusters.starts.narrow(0, 0, clusters.size());
}

// Sums in the precision in which they are taken.
at::Tensor wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

at::Tensor divided_by_counts(const at::Tensor& sums, const RowClusters& clusters) {
  return sums / counts_of(clusters).unsqueeze(1).to(sums.scalar_type());
}

}  // namespace

int64_t lsh_key_bits(const LshOptions& options) { return options.hashes * bits_of_hash(options.hash_dim); }

void check(const LshOptions& options, int64_t embed) {
  if (options.hashes < 1 || options.hashes > kHashesMax)
    base::fail_input("expert.hashes = {}: must be 1 to {}.", options.hashes, kHashesMax);
  if (options.hash_dim < 1 || options.hash_dim > embed)
    base::fail_input("expert.hash_dim = {}: must be 1 to {}, the width of the rows.", options.hash_dim, embed);
  const int64_t each = bits_of_hash(options.hash_dim);
  if (options.hashes * each > kKeyBits)
    base::fail_input(
        "expert.hashes = {}: with expert.hash_dim = {} a key has {} bits, and {} fit. Use at most {} hashes, or a smaller expert.hash_dim.",
        options.hashes, options.hash_dim, options.hashes * each, kKeyBits, kKeyBits / each);
}

at::Tensor lsh_rotations(int64_t embed, const LshOptions& options) {
  check(options, embed);
  const int64_t columns = options.hashes * options.hash_dim;
  const at::Tensor rotations = at::empty({embed, columns}, at::kFloat);
  const base::Random random = base::Random(kRotationSeed).for_purpose("lsh rotations");
  for (int64_t q = 0; q < options.hashes; ++q)
    fill_rotation(rotations.data_ptr<float>(), embed, columns, q * options.hash_dim, options.hash_dim,
                  random.for_index(static_cast<uint64_t>(q)));
  return rotations;
}

at::Tensor lsh_keys(const at::Tensor& rows, const at::Tensor& rotations, const LshOptions& options) {
  CAIRN_CHECK(rows.dim() == 2 && rotations.size(0) == rows.size(1) && rotations.size(1) == options.hashes * options.hash_dim,
              "rotations of {} columns for {} hashes of {} dims", rotations.size(1), options.hashes, options.hash_dim);
  return rows.is_cpu() ? keys_on_host(rows, rotations, options) : keys_on_device(rows, rotations, options);
}

RowClusters cluster_rows(const at::Tensor& keys, const kernels::RowGroups& rows) {
  const int64_t n = keys.size(0);
  const at::Tensor counts = rows.counts().to(keys.device());
  const at::Tensor group = at::arange(counts.size(0), counts.options()).repeat_interleave(counts, 0, n);
  CAIRN_CHECK(group.size(0) == n, "{} keys for {} rows in groups", n, group.size(0));
  RowClusters clusters;
  const at::Tensor by_key = std::get<1>(at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  const at::Tensor by_group = std::get<1>(at::sort(group.index_select(0, by_key), true, 0, false));
  clusters.order = by_key.index_select(0, by_group);
  const at::Tensor sorted_keys = keys.index_select(0, clusters.order), sorted_groups = group.index_select(0, clusters.order);
  const auto behind = [&](const at::Tensor& x) { return x.narrow(0, 1, std::max<int64_t>(n - 1, 0)); };
  const auto before = [&](const at::Tensor& x) { return x.narrow(0, 0, std::max<int64_t>(n - 1, 0)); };
  at::Tensor begins = at::ones({n}, keys.options().dtype(at::kBool));
  if (n > 1)
    begins.narrow(0, 1, n - 1)
        .copy_(behind(sorted_keys).ne(before(sorted_keys)).logical_or(behind(sorted_groups).ne(before(sorted_groups))));
  const at::Tensor first = begins.nonzero().view({-1});
  clusters.starts = at::cat({first, at::full({1}, n, first.options())});
  clusters.cluster = at::empty_like(clusters.order);
  clusters.cluster.index_copy_(0, clusters.order, begins.to(at::kLong).cumsum(0) - 1);
  clusters.groups = kernels::RowGroups(sorted_groups.index_select(0, first).bincount({}, counts.size(0)));
  return clusters;
}

at::Tensor cluster_sums(const at::Tensor& rows, const RowClusters& clusters) {
  const int64_t width = rows.size(1);
  if (!rows.is_cpu())
    return at::segment_reduce(wide(rows.index_select(0, clusters.order)), "sum", counts_of(clusters), {}, {}, 0, /*unsafe=*/true, 0);
  const at::Tensor from = rows.contiguous();
  const at::Tensor sums =
      at::empty({clusters.size(), width}, rows.options().dtype(rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  const int64_t *const order = clusters.order.const_data_ptr<int64_t>(), *const starts = clusters.starts.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "cluster_sums", [&] {
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    const scalar_t* const values = from.const_data_ptr<scalar_t>();
    Sum* const out = sums.data_ptr<Sum>();
    at::parallel_for(0, clusters.size(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) add_rows_in_order(out + j * width, values, order + starts[j], starts[j + 1] - starts[j], width);
    });
  });
  return sums;
}

at::Tensor centroids_of(const at::Tensor& rows, const RowClusters& clusters) {
  return divided_by_counts(cluster_sums(rows, clusters), clusters).to(rows.scalar_type());
}

at::Tensor restore_rows(const at::Tensor& results, const at::Tensor& rows, const at::Tensor& centroids, const RowClusters& clusters,
                        const LshOptions& options) {
  if (!options.residual) return results.index_select(0, clusters.cluster);
  const at::Tensor residual = wide(rows) - wide(centroids).index_select(0, clusters.cluster);
  return (wide(results).index_select(0, clusters.cluster) + residual).to(results.scalar_type());
}

at::Tensor centroid_gradients(const at::Tensor& gradient, const RowClusters& clusters) {
  return cluster_sums(gradient, clusters).to(gradient.scalar_type());
}

at::Tensor row_gradients(const at::Tensor& returned, const at::Tensor& gradient, const RowClusters& clusters, const LshOptions& options) {
  at::Tensor of_cluster = divided_by_counts(wide(returned), clusters).index_select(0, clusters.cluster);
  if (options.residual) {  // g minus its mean first: for a cluster of one row it is 0, and the rest exact
    const at::Tensor mean = divided_by_counts(cluster_sums(gradient, clusters), clusters);
    of_cluster = of_cluster + (wide(gradient) - mean.index_select(0, clusters.cluster));
  }
  return of_cluster.to(gradient.scalar_type());
}

}  // namespace cairn::model
