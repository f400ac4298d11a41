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

void append_run(std::vector<int64_t>& to, int64_t first, int64_t count) {
  const auto before = static_cast<std::ptrdiff_t>(to.size());
  to.resize(to.size() + static_cast<size_t>(count));
  std::iota(to.begin() + before, to.end(), first);
}

}  // namespace

RowPlan plan_rows(const std::vector<int64_t>& announced, int ranks, int me, const mesh::Ragged& experts) {
  const size_t n = experts.owners.size(), line = n + 1;
  CAIRN_CHECK(announced.size() == line * static_cast<size_t>(ranks), "{} counts of {} ranks and {} experts", announced.size(), ranks, n);
  const auto rows = [&](int rank, size_t expert) { return announced[static_cast<size_t>(rank) * line + 1 + expert]; };
  RowPlan plan;
  plan.counts = {ranks, std::vector<int64_t>(static_cast<size_t>(ranks) * static_cast<size_t>(ranks), 0)};
  std::vector<int64_t> totals;
  for (int rank = 0; rank < ranks; ++rank) {
    totals.push_back(announced[static_cast<size_t>(rank) * line]);
    for (size_t e = 0; e < n; ++e) {
      if (rows(rank, e) < 0)
        throw Error(Error::Kind::broken_invariant,
                    fmt::format("the count matrix does not add up: rank {} announces {} rows for expert {}. No row was sent.", rank,
                                rows(rank, e), e));
      plan.counts.counts[static_cast<size_t>(rank * ranks + experts.owners[e].front())] += rows(rank, e);
    }
  }
  comm::check(plan.counts, totals);

  std::vector<int64_t> first(n, 0);  // of this rank's rows of each expert
  for (size_t e = 1; e < n; ++e) first[e] = first[e - 1] + rows(me, e - 1);
  for (int to = 0; to < ranks; ++to)
    for (size_t e = 0; e < n; ++e)
      if (experts.owners[e].front() == to) append_run(plan.pack, first[e], rows(me, e));
  plan.pack = unless_ascending(std::move(plan.pack));

  std::vector<size_t> here;
  for (size_t e = 0; e < n; ++e)
    if (experts.owners[e].front() == me) here.push_back(e);
  std::vector<int64_t> arrives(static_cast<size_t>(ranks) * here.size());  // first row of each sender and local expert
  int64_t at = 0;
  for (int from = 0; from < ranks; ++from)
    for (size_t k = 0; k < here.size(); ++k) {
      arrives[static_cast<size_t>(from) * here.size() + k] = at;
      at += rows(from, here[k]);
    }
  for (size_t k = 0; k < here.size(); ++k) {
    int64_t sum = 0;
    for (int from = 0; from < ranks; ++from) {
      append_run(plan.by_expert, arrives[static_cast<size_t>(from) * here.size() + k], rows(from, here[k]));
      sum += rows(from, here[k]);
    }
    plan.local.push_back(sum);
  }
  plan.by_expert = unless_ascending(std::move(plan.by_expert));
  return plan;
}

}  // namespace cairn::parallel
