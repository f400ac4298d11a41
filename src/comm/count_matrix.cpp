#include "comm/count_matrix.h"

#include <cstddef>

#include "base/check.h"
#include "comm/group.h"

namespace cairn::comm {
namespace {

constexpr int64_t kRowsMax = int64_t{1} << 40;  // of all ranks together: sums of counts cannot overflow

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Error::Kind::broken_invariant, fmt::format("the count matrix does not add up: {}. No row was sent.", what));
}

}  // namespace

std::vector<int64_t> CountMatrix::sent_by(int from) const {
  const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(from) * ranks;
  return {begin, begin + ranks};
}

std::vector<int64_t> CountMatrix::received_by(int to) const {
  std::vector<int64_t> column;
  for (int from = 0; from < ranks; ++from) column.push_back(at(from, to));
  return column;
}

void check(const CountMatrix& matrix, std::span<const int64_t> rows) {
  const auto n = static_cast<size_t>(matrix.ranks);
  if (matrix.ranks < 1 || matrix.counts.size() != n * n || rows.size() != n)
    refuse(fmt::format("{} counts and {} totals for {} ranks", matrix.counts.size(), rows.size(), matrix.ranks));
  int64_t all = 0;
  for (int from = 0; from < matrix.ranks; ++from) {
    int64_t sum = 0;
    for (int to = 0; to < matrix.ranks; ++to) {
      const int64_t count = matrix.at(from, to);
      if (count < 0 || count > kRowsMax) refuse(fmt::format("rank {} announces {} rows for rank {}", from, count, to));
      sum += count;
      all += count;
      if (all > kRowsMax) refuse(fmt::format("more than {} rows in all, up to those of rank {}", kRowsMax, from));
    }
    if (sum != rows[static_cast<size_t>(from)])
      refuse(fmt::format("rank {} announces {} rows and has {}", from, sum, rows[static_cast<size_t>(from)]));
  }
}

CountMatrix exchange_counts(Group& group, std::span<const int64_t> counts, int64_t rows, Label label) {
  const auto n = static_cast<size_t>(group.size());
  CAIRN_CHECK(counts.size() == n, "{} counts for a group of {}", counts.size(), n);
  std::vector<int64_t> own(counts.begin(), counts.end()), all(n * (n + 1));
  own.push_back(rows);
  const Span from{own.data(), static_cast<int64_t>(own.size()), Dtype::i64}, into{all.data(), static_cast<int64_t>(all.size()), Dtype::i64};
  group.all_gather(into, from, label).wait_host();
  CountMatrix matrix{group.size(), {}};
  std::vector<int64_t> totals;
  for (size_t rank = 0; rank < n; ++rank) {
    const auto line = all.begin() + static_cast<std::ptrdiff_t>(rank * (n + 1));
    matrix.counts.insert(matrix.counts.end(), line, line + static_cast<std::ptrdiff_t>(n));
    totals.push_back(line[static_cast<std::ptrdiff_t>(n)]);
  }
  check(matrix, totals);
  return matrix;
}

}  // namespace cairn::comm
