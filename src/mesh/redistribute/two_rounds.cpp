// A reduced value that several ranks need, in two rounds: round one reduces it once, each receiver an even share; round two sends the
// shares to all receivers. That is reduce-scatter and all-gather for arbitrary sets of senders and receivers.
#include <algorithm>
#include <map>
#include <utility>

#include "mesh/redistribute/choose_collective.h"

namespace cairn::mesh {
namespace {

// A box that all of `ranks` need as the same reduction.
struct Wanted {
  Box box;
  std::vector<int> ranks;
};
using ByTerms = std::map<std::vector<int>, std::vector<Wanted>>;  // by the ranks whose terms are reduced

// Adds a box that `rank` needs. Where it overlaps a box that others need, both are cut, so that each part has one set of receivers.
void add(std::vector<Wanted>& all, const Box& box, int rank) {
  const auto met = std::find_if(all.begin(), all.end(), [&](const Wanted& one) { return intersect(one.box, box).has_value(); });
  if (met == all.end()) {
    all.push_back({box, {rank}});
    return;
  }
  const Box both = *intersect(met->box, box);
  const Wanted before = *met;
  met->box = both;
  met->ranks.push_back(rank);
  for (Box& outside : subtract(before.box, both)) all.push_back({std::move(outside), before.ranks});
  for (const Box& outside : subtract(box, both)) add(all, outside, rank);
}

bool is_shared_reduction(const ByTerms::value_type& entry) {
  return entry.first.size() > 1 &&
         std::any_of(entry.second.begin(), entry.second.end(), [](const Wanted& one) { return one.ranks.size() > 1; });
}

}  // namespace

TwoRounds in_two_rounds(const std::vector<BoxTransfer>& transfers) {
  if (std::all_of(transfers.begin(), transfers.end(), [](const BoxTransfer& transfer) { return transfer.from.size() == 1; })) return {};
  ByTerms by_terms;
  for (const BoxTransfer& transfer : transfers) add(by_terms[transfer.from], transfer.box, transfer.to);
  if (std::none_of(by_terms.begin(), by_terms.end(), is_shared_reduction)) return {};
  TwoRounds rounds;
  size_t turn = 0;  // rotates the owners, so that the longer shares do not all go to one rank
  for (const auto& [from, all] : by_terms)
    for (const Wanted& one : all) {
      std::vector<int> owners;
      for (int rank : one.ranks)
        if (std::find(from.begin(), from.end(), rank) != from.end()) owners.push_back(rank);
      if (owners.empty()) owners = one.ranks;
      for (const Box& share : cut(one.box, static_cast<int64_t>(owners.size()))) {
        const int owner = owners[turn++ % owners.size()];
        rounds.first.push_back({owner, share, from});
        for (int rank : one.ranks) rounds.second.push_back({rank, share, {owner}});
      }
    }
  return rounds;
}

}  // namespace cairn::mesh
