#include "comm/collectives/node_exchange.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/check.h"

namespace cairn::comm {
namespace {

// The position of a local rank of a node.
struct NodeGrid {
  int nodes;
  int locals;
  int at(int node, int local) const { return node * locals + local; }
};

struct RowMessage {
  int from = 0;
  int to = 0;
  double bytes = 0;
};

// Plays messages through the cards of the ranks: each sends its own one after the other and takes what arrives in the order of arrival.
// Where links do not share a card, messages do not wait for each other.
class CardModel {
 public:
  CardModel(const NodeGrid& grid, const NodeLinks& links)
      : grid_(grid), links_(links), out_free_(static_cast<size_t>(grid.nodes * grid.locals), 0), in_free_(out_free_) {}

  // `ready[r]`: when rank r starts; becomes when it is done. The messages of a rank are in the order in which it sends them.
  void play(const std::vector<RowMessage>& messages, std::vector<double>& ready) {
    struct Arrival {
      double at, needs;
      size_t to;
    };
    std::vector<Arrival> arrivals;
    std::vector<double> done = ready, handled(ready.size(), 0);
    for (const RowMessage& message : messages) {
      const auto from = static_cast<size_t>(message.from), to = static_cast<size_t>(message.to);
      const LinkFacts& link = of(message.from, message.to);
      const double needs = message.bytes / link.bytes_per_s, latency = std::chrono::duration<double>(link.latency).count();
      const double begin = link.shared_card ? std::max(out_free_[from], ready[from]) : ready[from];
      const double overhead = std::chrono::duration<double>(link.overhead).count();
      out_free_[from] = begin + needs;
      done[from] = std::max(done[from], begin + needs);
      handled[from] += overhead, handled[to] += overhead;
      arrivals.push_back({begin + needs + latency, link.shared_card ? needs : 0, to});
    }
    std::stable_sort(arrivals.begin(), arrivals.end(), [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
    for (const Arrival& arrival : arrivals) {
      in_free_[arrival.to] = std::max(in_free_[arrival.to] + arrival.needs, arrival.at);
      done[arrival.to] = std::max(done[arrival.to], in_free_[arrival.to]);
    }
    for (size_t rank = 0; rank < ready.size(); ++rank) ready[rank] = done[rank] + handled[rank];
  }

 private:
  const LinkFacts& of(int from, int to) const {
    if (from / grid_.locals == to / grid_.locals) return links_.inside;
    return from % grid_.locals == to % grid_.locals ? links_.rail : links_.across;
  }

  const NodeGrid& grid_;
  const NodeLinks& links_;
  std::vector<double> out_free_, in_free_;
};

double flat_seconds(const CountMatrix& counts, double row_bytes, const NodeGrid& grid, const NodeLinks& links) {
  std::vector<RowMessage> messages;
  for (int me = 0; me < counts.ranks; ++me)
    for (int k = 1; k < counts.ranks; ++k) {
      const int peer = (me + k) % counts.ranks;
      if (counts.at(me, peer) > 0) messages.push_back({me, peer, static_cast<double>(counts.at(me, peer)) * row_bytes});
    }
  std::vector<double> ready(static_cast<size_t>(counts.ranks), 0);
  CardModel(grid, links).play(messages, ready);
  return *std::max_element(ready.begin(), ready.end());
}

// The rows of (node, from) for all ranks of local rank `to`.
int64_t first_rows(const CountMatrix& counts, const NodeGrid& grid, int node, int from, int to) {
  int64_t rows = 0;
  for (int d = 0; d < grid.nodes; ++d) rows += counts.at(grid.at(node, from), grid.at(d, to));
  return rows;
}

// The rows of all ranks of node `from` for (to, local).
int64_t second_rows(const CountMatrix& counts, const NodeGrid& grid, int from, int to, int local) {
  int64_t rows = 0;
  for (int a = 0; a < grid.locals; ++a) rows += counts.at(grid.at(from, a), grid.at(to, local));
  return rows;
}

double by_node_seconds(const CountMatrix& counts, double row_bytes, const NodeGrid& grid, const NodeLinks& links) {
  std::vector<RowMessage> first, second;
  for (int node = 0; node < grid.nodes; ++node) {
    for (int local = 0; local < grid.locals; ++local) {
      for (int k = 1; k < grid.locals; ++k) {
        const int peer = (local + k) % grid.locals;
        const int64_t rows = first_rows(counts, grid, node, local, peer);
        if (rows > 0) first.push_back({grid.at(node, local), grid.at(node, peer), static_cast<double>(rows) * row_bytes});
      }
      for (int k = 1; k < grid.nodes; ++k) {
        const int peer = (node + k) % grid.nodes;
        const int64_t rows = second_rows(counts, grid, node, peer, local);
        if (rows > 0) second.push_back({grid.at(node, local), grid.at(peer, local), static_cast<double>(rows) * row_bytes});
      }
    }
  }
  std::vector<double> ready(static_cast<size_t>(counts.ranks), 0);
  CardModel cards(grid, links);
  cards.play(first, ready);
  cards.play(second, ready);
  return *std::max_element(ready.begin(), ready.end());
}

}  // namespace

bool has_whole_nodes(int ranks, int node_ranks) { return node_ranks > 1 && ranks > node_ranks && ranks % node_ranks == 0; }

NodeExchange plan_node_exchange(const CountMatrix& counts, int me, int node_ranks) {
  CAIRN_CHECK(has_whole_nodes(counts.ranks, node_ranks), "{} ranks are no whole nodes of {}", counts.ranks, node_ranks);
  const NodeGrid grid{counts.ranks / node_ranks, node_ranks};
  const int node = me / node_ranks, local = me % node_ranks;
  NodeExchange plan;
  for (int l = 0; l < grid.locals; ++l) plan.node.push_back(grid.at(node, l));
  for (int d = 0; d < grid.nodes; ++d) plan.rail.push_back(grid.at(d, local));

  const std::vector<int64_t> sent = counts.sent_by(me);
  std::vector<int64_t> first(sent.size());
  std::exclusive_scan(sent.begin(), sent.end(), first.begin(), int64_t{0});
  for (int l = 0; l < grid.locals; ++l) {
    for (int d = 0; d < grid.nodes; ++d) {
      const auto to = static_cast<size_t>(grid.at(d, l));
      plan.pack_first.push_back({first[to], sent[to]});
    }
    plan.first_sent.push_back(first_rows(counts, grid, node, local, l));
    plan.first_received.push_back(first_rows(counts, grid, node, l, local));
  }
  // Phase 1 brings: by sender a, by node d of the receiver, the rows of (node, a) for (d, local).
  std::vector<std::vector<RowRange>> brought(static_cast<size_t>(grid.nodes));
  int64_t at = 0;
  for (int a = 0; a < grid.locals; ++a) {
    for (int d = 0; d < grid.nodes; ++d) {
      const int64_t rows = counts.at(grid.at(node, a), grid.at(d, local));
      brought[static_cast<size_t>(d)].push_back({at, rows});
      at += rows;
    }
  }
  for (int d = 0; d < grid.nodes; ++d) {
    for (const RowRange& range : brought[static_cast<size_t>(d)]) plan.pack_second.push_back(range);
    plan.second_sent.push_back(second_rows(counts, grid, node, d, local));
    plan.second_received.push_back(second_rows(counts, grid, d, node, local));
  }
  return plan;
}

std::chrono::nanoseconds cost(AllToAllPath path, const CountMatrix& counts, int64_t row_bytes, int node_ranks, const NodeLinks& links) {
  CAIRN_CHECK(has_whole_nodes(counts.ranks, node_ranks), "{} ranks are no whole nodes of {}", counts.ranks, node_ranks);
  const NodeGrid grid{counts.ranks / node_ranks, node_ranks};
  const auto bytes = static_cast<double>(row_bytes);
  const double seconds =
      path == AllToAllPath::flat ? flat_seconds(counts, bytes, grid, links) : by_node_seconds(counts, bytes, grid, links);
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

AllToAllPath choose_all_to_all(const CountMatrix& counts, int64_t row_bytes, int node_ranks, const NodeLinks& links) {
  if (!has_whole_nodes(counts.ranks, node_ranks)) return AllToAllPath::flat;
  const auto flat = cost(AllToAllPath::flat, counts, row_bytes, node_ranks, links);
  return cost(AllToAllPath::by_node, counts, row_bytes, node_ranks, links) < flat ? AllToAllPath::by_node : AllToAllPath::flat;
}

}  // namespace cairn::comm
