#include "mesh/steps.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace cairn::mesh {
namespace {

bool by_receiver(const Piece& a, const Piece& b) { return std::tie(a.to, a.box, a.from) < std::tie(b.to, b.box, b.from); }

std::vector<int> ranks_of(const std::vector<Piece>& pieces) {
  std::set<int> ranks;
  for (const Piece& piece : pieces) {
    ranks.insert(piece.to);
    ranks.insert(piece.from.begin(), piece.from.end());
  }
  return {ranks.begin(), ranks.end()};
}

// Whether every rank is given the same boxes from the same ranks.
bool alike_for_all(const std::vector<Piece>& pieces, size_t ranks) {
  const size_t each = pieces.size() / ranks;
  if (each * ranks != pieces.size()) return false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece &a = pieces[i], &b = pieces[i % each];
    if (a.to != pieces[i / each * each].to || a.box != b.box || a.from != b.from) return false;
  }
  return true;
}

// Whether every piece is the reduction of all ranks' values.
bool reduces_all(const std::vector<Piece>& pieces, size_t ranks) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return piece.from.size() == ranks && piece.from == pieces.front().from; });
}

}  // namespace

std::vector<std::vector<Piece>> separate(std::vector<Piece> pieces) {
  std::map<int, int> above;  // towards the lowest rank of the set
  const auto lowest = [&](int rank) {
    above.try_emplace(rank, rank);
    while (above[rank] != rank) rank = above[rank] = above[above[rank]];
    return rank;
  };
  for (const Piece& piece : pieces)
    for (int from : piece.from) {
      const int a = lowest(piece.to), b = lowest(from);
      above[std::max(a, b)] = std::min(a, b);
    }
  std::sort(pieces.begin(), pieces.end(), by_receiver);
  std::map<int, std::vector<Piece>> sets;
  for (Piece& piece : pieces) sets[lowest(piece.to)].push_back(std::move(piece));
  std::vector<std::vector<Piece>> result;
  for (auto& [rank, set] : sets) result.push_back(std::move(set));
  return result;
}

Step step_for(std::vector<Piece> pieces) {
  Step step;
  step.ranks = ranks_of(pieces);
  const size_t n = step.ranks.size();
  const bool moves = std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.from.size() == 1; });
  if (n == 1) {
    step.by = Carrier::copy;
  } else if (moves) {
    step.by = alike_for_all(pieces, n) ? Carrier::all_gather : Carrier::all_to_all;
  } else if (reduces_all(pieces, n)) {
    step.by = alike_for_all(pieces, n) ? Carrier::all_reduce : Carrier::reduce_scatter;
    step.ranks = pieces.front().from;
  } else {
    step.by = Carrier::all_to_all;
  }
  step.pieces = std::move(pieces);
  return step;
}

}  // namespace cairn::mesh
