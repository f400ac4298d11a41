// Which collective carries out a set of transfers between n ranks (OneFlow calls this table boxing, arXiv:2110.15032). R: the transfers
// reduce terms of several ranks; each row needs the condition that it names.
//
//   n = 1                                                  copy
//   no R, every rank receives the same boxes               all_gather      (split -> replicate)
//   no R, otherwise                                        all_to_all      (split -> split along another dim, between meshes)
//   R over all n ranks, every rank receives the same boxes all_reduce      (partial -> replicate)
//   R over all n ranks, otherwise                          reduce_scatter  (partial -> split)
//   R over some of the ranks                               all_to_all of the terms; each receiver reduces
//
// A reduction over some ranks whose result several ranks need would send the same terms several times: two_rounds.cpp splits it.
#include "mesh/redistribute/choose_collective.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace cairn::mesh {
namespace {

bool by_receiver(const BoxTransfer& a, const BoxTransfer& b) { return std::tie(a.to, a.box, a.from) < std::tie(b.to, b.box, b.from); }

std::vector<int> ranks_of(const std::vector<BoxTransfer>& transfers) {
  std::set<int> ranks;
  for (const BoxTransfer& transfer : transfers) {
    ranks.insert(transfer.to);
    ranks.insert(transfer.from.begin(), transfer.from.end());
  }
  return {ranks.begin(), ranks.end()};
}

// Whether every rank receives the same boxes from the same ranks.
bool same_for_all_ranks(const std::vector<BoxTransfer>& transfers, size_t ranks) {
  const size_t each = transfers.size() / ranks;
  if (each * ranks != transfers.size()) return false;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const BoxTransfer &a = transfers[i], &b = transfers[i % each];
    if (a.to != transfers[i / each * each].to || a.box != b.box || a.from != b.from) return false;
  }
  return true;
}

// Whether every transfer reduces the terms of all ranks.
bool reduces_all(const std::vector<BoxTransfer>& transfers, size_t ranks) {
  return std::all_of(transfers.begin(), transfers.end(),
                     [&](const BoxTransfer& transfer) { return transfer.from.size() == ranks && transfer.from == transfers.front().from; });
}

}  // namespace

std::vector<std::vector<BoxTransfer>> independent_groups(std::vector<BoxTransfer> transfers) {
  std::map<int, int> above;  // union-find: parent of each rank; the root is the lowest rank of the set
  const auto lowest = [&](int rank) {
    above.try_emplace(rank, rank);
    while (above[rank] != rank) rank = above[rank] = above[above[rank]];
    return rank;
  };
  for (const BoxTransfer& transfer : transfers)
    for (int from : transfer.from) {
      const int a = lowest(transfer.to), b = lowest(from);
      above[std::max(a, b)] = std::min(a, b);
    }
  std::sort(transfers.begin(), transfers.end(), by_receiver);
  std::map<int, std::vector<BoxTransfer>> sets;
  for (BoxTransfer& transfer : transfers) sets[lowest(transfer.to)].push_back(std::move(transfer));
  std::vector<std::vector<BoxTransfer>> result;
  for (auto& [rank, set] : sets) result.push_back(std::move(set));
  return result;
}

ExchangeStep choose_collective(std::vector<BoxTransfer> transfers) {
  ExchangeStep step;
  step.ranks = ranks_of(transfers);
  const size_t n = step.ranks.size();
  const bool moves = std::all_of(transfers.begin(), transfers.end(), [](const BoxTransfer& transfer) { return transfer.from.size() == 1; });
  if (n == 1) {
    step.by = CollectiveKind::copy;
  } else if (moves) {
    step.by = same_for_all_ranks(transfers, n) ? CollectiveKind::all_gather : CollectiveKind::all_to_all;
  } else if (reduces_all(transfers, n)) {
    step.by = same_for_all_ranks(transfers, n) ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
    step.ranks = transfers.front().from;
  } else {
    step.by = CollectiveKind::all_to_all;
  }
  step.transfers = std::move(transfers);
  return step;
}

}  // namespace cairn::mesh
