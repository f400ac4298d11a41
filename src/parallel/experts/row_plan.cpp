#include "parallel/experts/row_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace cairn::parallel {
namespace {

// Empty where the order is that of the numbers themselves.
std::vector<int64_t> unless_ascending(std::vector<int64_t> order) {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != static_cast<int64_t>(i)) return order;
  return {};
}

// The rows of one rank for one expert, at each of the expert's holders: row i goes to targets[(i + source) mod k].
struct Division {
  std::vector<int> targets;  // ascending
  int source = 0;
  int64_t rows = 0;

  // The first row for a rank; `rows` and more: none.
  int64_t first(int rank) const {
    const auto found = std::find(targets.begin(), targets.end(), rank);
    if (found == targets.end()) return rows;
    const auto k = static_cast<int64_t>(targets.size()), place = static_cast<int64_t>(found - targets.begin());
    return ((place - source) % k + k) % k;
  }
  int64_t count(int rank) const {
    const auto k = static_cast<int64_t>(targets.size());
    return first(rank) < rows ? (rows - 1 - first(rank)) / k + 1 : 0;
  }
};

// The rows of this rank by receiver, of each by expert.
template <typename DivisionOf>
std::vector<int64_t> leaving_order(int ranks, size_t experts, int me, const DivisionOf& division) {
  std::vector<int64_t> order;
  for (int to = 0; to < ranks; ++to) {
    int64_t before = 0;  // rows of earlier experts
    for (size_t e = 0; e < experts; ++e) {
      const Division rows = division(me, e);
      for (int64_t i = rows.first(to); i < rows.rows; i += static_cast<int64_t>(rows.targets.size())) order.push_back(before + i);
      before += rows.rows;
    }
  }
  return order;
}

// Rows arrive by sender and expert; the experts want them by expert and sender.
template <typename DivisionOf>
void arrange_arrivals(RowPlan& plan, const std::vector<int64_t>& held, int ranks, int me, const DivisionOf& division) {
  std::vector<std::vector<int64_t>> counts(held.size()), first(held.size());  // by expert and sender
  int64_t at = 0;
  for (int from = 0; from < ranks; ++from)
    for (size_t k = 0; k < held.size(); ++k) {
      const int64_t count = division(from, static_cast<size_t>(held[k])).count(me);
      counts[k].push_back(count);
      first[k].push_back(at);
      at += count;
    }
  for (size_t k = 0; k < held.size(); ++k) {
    plan.local.push_back(std::accumulate(counts[k].begin(), counts[k].end(), int64_t{0}));
    for (size_t from = 0; from < counts[k].size(); ++from)
      for (int64_t i = 0; i < counts[k][from]; ++i) plan.by_expert.push_back(first[k][from] + i);
  }
  plan.by_expert = unless_ascending(std::move(plan.by_expert));
}

}  // namespace

RowPlan plan_rows(const std::vector<int64_t>& announced, int ranks, int me, const mesh::Ragged& experts, const NodeOf& nodes) {
  const size_t n = experts.owners.size(), line = n + 1;
  CAIRN_CHECK(announced.size() == line * static_cast<size_t>(ranks), "{} counts of {} ranks and {} experts", announced.size(), ranks, n);
  const auto division = [&](int rank, size_t expert) {
    return Division{targets_of(experts, static_cast<int>(expert), rank, nodes), rank,
                    announced[static_cast<size_t>(rank) * line + 1 + expert]};
  };
  RowPlan plan;
  plan.counts = {ranks, std::vector<int64_t>(static_cast<size_t>(ranks) * static_cast<size_t>(ranks), 0)};
  std::vector<int64_t> totals;
  for (int rank = 0; rank < ranks; ++rank) {
    totals.push_back(announced[static_cast<size_t>(rank) * line]);
    for (size_t e = 0; e < n; ++e) {
      const Division rows = division(rank, e);
      if (rows.rows < 0)
        throw Error(
            Error::Kind::broken_invariant,
            fmt::format("the count matrix does not add up: rank {} announces {} rows for expert {}. No row was sent.", rank, rows.rows, e));
      for (const int to : rows.targets) plan.counts.counts[static_cast<size_t>(rank * ranks + to)] += rows.count(to);
    }
  }
  comm::check(plan.counts, totals);
  plan.pack = unless_ascending(leaving_order(ranks, n, me, division));
  arrange_arrivals(plan, mesh::ids_of(experts, me), ranks, me, division);
  return plan;
}

}  // namespace cairn::parallel
