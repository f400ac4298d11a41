#include "study/prune/criteria.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::study {
namespace {

constexpr int64_t kRowsAtOnce = 1024;

int64_t removed_of(double sparsity, int64_t elements) {
  return static_cast<int64_t>(std::floor(sparsity * static_cast<double>(elements) + 1e-9));
}

// The k-th lowest of all, k from 1.
float kth_lowest(const at::Tensor& flat, int64_t k) {
  const at::Tensor host = flat.cpu().contiguous();
  std::vector<float> values(host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel());
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end());
  return values[static_cast<size_t>(k - 1)];
}

// The lowest k of a layer go; ties by index.
at::Tensor without_lowest(const at::Tensor& scores, int64_t k) {
  at::Tensor kept = at::ones(scores.sizes(), scores.options().dtype(at::kBool));
  if (k == 0) return kept;
  const at::Tensor flat = scores.reshape({-1});
  const float last = kth_lowest(flat, k);
  const at::Tensor lower = flat.lt(last), flat_kept = kept.view({-1});
  flat_kept.masked_fill_(lower, false);
  const int64_t ties = k - lower.sum().item<int64_t>();
  const at::Tensor equal = flat.eq(last).nonzero().view({-1}).narrow(0, 0, ties);
  flat_kept.index_fill_(0, equal, false);
  return kept;
}

// The lowest k of each row of [rows, columns] go.
at::Tensor without_lowest_of_rows(const at::Tensor& scores, int64_t k) {
  at::Tensor kept = at::ones(scores.sizes(), scores.options().dtype(at::kBool));
  for (int64_t begin = 0; k > 0 && begin < scores.size(0); begin += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, scores.size(0) - begin);
    const at::Tensor order = scores.narrow(0, begin, rows).argsort(/*stable=*/true, /*dim=*/1, /*descending=*/false);
    kept.narrow(0, begin, rows).scatter_(1, order.narrow(1, 0, k), false);
  }
  return kept;
}

}  // namespace

at::Tensor magnitude_scores(const at::Tensor& weight) { return weight.abs().to(at::kFloat); }

at::Tensor random_scores(const at::Tensor& weight, const base::Random& random) {
  at::Tensor scores = at::empty(weight.sizes(), at::kFloat);
  random.fill_uniform({scores.mutable_data_ptr<float>(), static_cast<size_t>(scores.numel())});
  return scores.to(weight.device());
}

at::Tensor wanda_scores(const at::Tensor& weight, const at::Tensor& mean_square) {
  return weight.abs().to(at::kFloat).mul_(mean_square.to(at::kFloat).sqrt());
}

at::Tensor keep_highest(const at::Tensor& scores, const PruneRule& rule, const at::Tensor& kept_before) {
  const int64_t rows = scores.size(0), columns = scores.size(1), m = rule.pattern.m;
  const at::Tensor by =
      kept_before.defined() ? scores.masked_fill(kept_before.logical_not(), -std::numeric_limits<double>::infinity()) : scores;
  at::Tensor kept;
  if (m > 0) {
    CAIRN_CHECK(columns % m == 0, "{} inputs in groups of {}", columns, m);
    kept = without_lowest_of_rows(by.reshape({rows * columns / m, m}), rule.pattern.n).view({rows, columns});
  } else {
    kept = rule.by_row ? without_lowest_of_rows(by, removed_of(rule.sparsity, columns))
                       : without_lowest(by, removed_of(rule.sparsity, rows * columns));
  }
  return kept_before.defined() ? kept.logical_and(kept_before) : kept;
}

}  // namespace cairn::study
