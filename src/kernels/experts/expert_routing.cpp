#include "kernels/expert_routing.h"

#include <limits>
#include <numeric>
#include <vector>

#include <ATen/ops/bincount.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/sort.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kRowsAtOnce = 256;

// Insertion into a list of k, in place of a sort of n.
template <typename T>
void top_k_rows(int64_t* ids, const T* scores, int64_t rows, int64_t n, int64_t k) {
  parallel_rows(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    std::vector<T> best(static_cast<size_t>(k));
    for (int64_t row = begin; row < end; ++row) {
      const T* const from = scores + row * n;
      int64_t* const into = ids + row * k;
      int64_t found = 0;
      for (int64_t i = 0; i < n; ++i) {
        const T score = from[i] == from[i] ? from[i] : -std::numeric_limits<T>::infinity();
        if (found == k && !(score > best[static_cast<size_t>(k - 1)])) continue;
        int64_t at = found < k ? found++ : k - 1;
        for (; at > 0 && score > best[static_cast<size_t>(at - 1)]; --at)
          best[static_cast<size_t>(at)] = best[static_cast<size_t>(at - 1)], into[at] = into[at - 1];
        best[static_cast<size_t>(at)] = score, into[at] = i;
      }
    }
  });
}

}  // namespace

at::Tensor top_k(const at::Tensor& scores, int64_t k) {
  CAIRN_CHECK(scores.dim() == 2 && k >= 1 && k <= scores.size(1), "the {} largest of {} scores", k, scores.dim() == 2 ? scores.size(1) : 0);
  const bool is_float = scores.scalar_type() == at::kFloat;
  if (!scores.is_cpu() || !scores.is_contiguous() || (!is_float && scores.scalar_type() != at::kDouble)) return reference::top_k(scores, k);
  const at::Tensor ids = at::empty({scores.size(0), k}, scores.options().dtype(at::kLong));
  int64_t* const into = ids.mutable_data_ptr<int64_t>();
  if (is_float)
    top_k_rows(into, scores.const_data_ptr<float>(), scores.size(0), scores.size(1), k);
  else
    top_k_rows(into, scores.const_data_ptr<double>(), scores.size(0), scores.size(1), k);
  return ids;
}

ExpertOrder order_by_expert(const at::Tensor& ids, int64_t experts) {
  if (!ids.is_cpu()) return reference::order_by_expert(ids, experts);
  const at::Tensor all = ids.contiguous();
  const int64_t* const of = all.const_data_ptr<int64_t>();
  const int64_t n = all.numel();
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
  for (int64_t i = 0; i < n; ++i) {
    CAIRN_CHECK(of[i] >= 0 && of[i] < experts, "expert {} of {}", of[i], experts);
    ++counts[static_cast<size_t>(of[i])];
  }
  std::vector<int64_t> next(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), next.begin(), int64_t{0});
  const at::Tensor slots = at::empty({n}, all.options()), places = at::empty(all.sizes(), all.options());
  int64_t* const slot_at = slots.mutable_data_ptr<int64_t>();
  int64_t* const place_of = places.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = next[static_cast<size_t>(of[i])]++;
    slot_at[place] = i, place_of[i] = place;
  }
  return {slots, places, RowGroups(counts)};
}

at::Tensor gather_sum(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& weights) {
  const bool fast = rows.is_cpu() && rows.scalar_type() == at::kFloat && rows.is_contiguous();
  if (!fast) return reference::gather_sum(rows, places, weights);
  const int64_t tokens = places.size(0), k = places.size(1), d = rows.size(1);
  const at::Tensor scale = weights.defined() ? weights.to(at::kFloat).contiguous() : at::Tensor(),
                   y = at::empty({tokens, d}, rows.options());
  const float* const from = rows.const_data_ptr<float>();
  const float* const by = scale.defined() ? scale.const_data_ptr<float>() : nullptr;
  const at::Tensor where = places.contiguous();
  const int64_t* const at = where.const_data_ptr<int64_t>();
  float* const into = y.mutable_data_ptr<float>();
  parallel_rows(tokens, kRowsAtOnce / 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const to = into + t * d;
      for (int64_t i = 0; i < k; ++i) {
        const float* const row = from + at[t * k + i] * d;
        const float weight = by ? by[t * k + i] : 1;
        if (i == 0) {
#pragma omp simd
          for (int64_t j = 0; j < d; ++j) to[j] = weight * row[j];
        } else {
#pragma omp simd
          for (int64_t j = 0; j < d; ++j) to[j] += weight * row[j];
        }
      }
    }
  });
  return y;
}

namespace reference {

at::Tensor gather_sum(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& weights) {
  const at::Tensor gathered = rows.index_select(0, places.reshape({-1})).view({places.size(0), places.size(1), rows.size(1)});
  if (!weights.defined()) return gathered.sum(1);
  return at::matmul(weights.to(rows.scalar_type()).unsqueeze(1), gathered).squeeze(1);
}

at::Tensor top_k(const at::Tensor& scores, int64_t k) {
  const double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  const at::Tensor numbers = at::nan_to_num(scores, least, most, least);
  return std::get<1>(at::sort(numbers, /*stable=*/true, /*dim=*/1, /*descending=*/true)).narrow(1, 0, k).contiguous();
}

ExpertOrder order_by_expert(const at::Tensor& ids, int64_t experts) {
  const at::Tensor flat = ids.reshape({-1});
  const at::Tensor slots = std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  const at::Tensor places = at::empty_like(flat).scatter_(0, slots, at::arange(flat.numel(), flat.options()));
  return {slots, places.view(ids.sizes()), RowGroups(at::bincount(flat, /*weights=*/{}, experts))};
}

}  // namespace reference
}  // namespace cairn::kernels
