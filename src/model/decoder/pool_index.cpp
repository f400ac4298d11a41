#include "model/decoder/pool_index.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/checksum.h"
#include "base/random.h"
#include "base/random/permutation.h"

namespace cairn::model {
namespace {

// The numbers that divide both.
std::string common_divisors(int64_t in, int64_t out) {
  std::string words;
  const int64_t both = std::gcd(in, out);
  for (int64_t d = 1; d <= std::min<int64_t>(both, 64); ++d)
    if (both % d == 0) words += (words.empty() ? "" : ", ") + std::to_string(d);
  return words;
}

std::vector<int64_t> rows_of_layer(const AdapterShape& s, int64_t layer, int64_t layers, const base::Random& random) {
  const int64_t taken = (s.rank - s.private_rank) * s.shards, shared = public_pool_rows(s, layers);
  std::vector<int64_t> rows;
  if (s.share_rows) {
    rows.resize(static_cast<size_t>(s.rank * s.shards));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    return rows;
  }
  if (taken > 0) {
    const base::Permutation order(static_cast<uint64_t>(shared), random.for_index(static_cast<uint64_t>(layer)));
    for (int64_t i = 0; i < taken; ++i) rows.push_back(static_cast<int64_t>(order.at(static_cast<uint64_t>(i))));
  }
  for (int64_t i = 0; i < s.private_rank * s.shards; ++i) rows.push_back(shared + layer * s.private_rank * s.shards + i);
  return rows;
}

}  // namespace

uint64_t PoolIndex::checksum() const {
  uint64_t sum = 0;
  for (const auto* side : {&a, &b})
    for (const std::vector<int64_t>& rows : *side) sum = sum * 31 + base::checksum(std::as_bytes(std::span(rows)));
  return sum;
}

int64_t pool_rows(const AdapterShape& shape, int64_t layers) { return shape.equivalent_rank * layers * shape.shards; }

int64_t public_pool_rows(const AdapterShape& shape, int64_t layers) {
  return (shape.equivalent_rank - shape.private_rank) * layers * shape.shards;
}

PoolIndex make_pool_index(const AdapterShape& shape, const std::string& kind, int64_t layers) {
  const base::Random random = base::Random(static_cast<uint64_t>(shape.index_seed)).for_purpose("adapter.pools").for_name(kind);
  PoolIndex index;
  for (int64_t layer = 0; layer < layers; ++layer) {
    index.a.push_back(rows_of_layer(shape, layer, layers, random.for_name("a")));
    index.b.push_back(shape.dissociate ? rows_of_layer(shape, layer, layers, random.for_name("b")) : index.a.back());
  }
  return index;
}

void check_pools(const AdapterShape& s, int64_t layers, const std::string& kind, int64_t in, int64_t out) {
  if (in % s.shards != 0 || out % s.shards != 0)
    base::fail_input("model.adapter.shards_per_vector = {}: {} is {} x {}, which so many pieces do not divide. Use one of {}.", s.shards,
                     kind, out, in, common_divisors(in, out));
  if (s.private_rank > s.equivalent_rank || s.private_rank > s.rank)
    base::fail_input("model.adapter.private_rank = {}: must be at most equivalent_rank = {} and rank = {}", s.private_rank,
                     s.equivalent_rank, s.rank);
  if (s.private_rank == s.equivalent_rank && s.rank != s.equivalent_rank)
    base::fail_input(
        "model.adapter.private_rank = {}: with all vectors private, rank = {} must be equivalent_rank = {} too (which is plain LoRA). Use "
        "a smaller private_rank.",
        s.private_rank, s.rank, s.equivalent_rank);
  if (s.share_rows ? s.rank > s.equivalent_rank * layers : s.rank - s.private_rank > (s.equivalent_rank - s.private_rank) * layers)
    base::fail_input("model.adapter.rank = {}: {} layers have {} public vectors, and each would take {}. Use a rank of at most {}.", s.rank,
                     layers, (s.equivalent_rank - s.private_rank) * layers, s.rank - s.private_rank,
                     (s.equivalent_rank - s.private_rank) * layers + s.private_rank);
}

PoolUse public_use(const AdapterShape& shape, const std::vector<std::vector<int64_t>>& index, int64_t layers) {
  std::vector<int64_t> times(static_cast<size_t>(public_pool_rows(shape, layers)), 0);
  if (times.empty()) return {};
  int64_t all = 0;
  for (const std::vector<int64_t>& rows : index)
    for (const int64_t row : rows)
      if (row < static_cast<int64_t>(times.size())) ++times[static_cast<size_t>(row)], ++all;
  PoolUse use{.least = *std::min_element(times.begin(), times.end()),
              .most = *std::max_element(times.begin(), times.end()),
              .mean = static_cast<double>(all) / static_cast<double>(times.size())};
  for (const int64_t one : times) ++use.rows[one];
  return use;
}

}  // namespace cairn::model
