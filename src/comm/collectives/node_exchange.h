#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/count_matrix.h"
#include "comm/link_facts.h"

namespace cairn::comm {

// A two-phase all-to-all over m nodes of p ranks (MoESys, Yu et al. 2022, arXiv:2205.10034: hierarchical all-to-all). Rank (N, l) is local
// rank l of node N, at position N p + l; C is the count matrix.
//
//   phase 1, inside the node     (N, a) -> (N, l)   all rows of (N, a) for ranks (d, l), d = 0 .. m-1
//   phase 2, along the rail l    (N, l) -> (d, l)   all rows of (N, a) for (d, l), a = 0 .. p-1
//
// Between two nodes p messages travel in each direction, not p p, each p times as long, and only between ranks of equal local rank (a rail:
// they often share a leaf switch). Rows arrive in the order of the senders' positions, so phase 2 writes straight into the result, which is
// bitwise that of the direct exchange. A row moves at most twice; bytes between nodes stay the same.

// Consecutive rows of a buffer.
struct RowRange {
  int64_t first = 0;
  int64_t rows = 0;
  bool operator==(const RowRange&) const = default;
};

// One rank's part of both phases.
struct NodeExchange {
  std::vector<int> node;                              // positions of the ranks of this node, by local rank
  std::vector<int> rail;                              // positions of the ranks with this local rank, by node
  std::vector<RowRange> pack_first;                   // of the input, in the order in which phase 1 sends them
  std::vector<int64_t> first_sent, first_received;    // rows by local rank
  std::vector<RowRange> pack_second;                  // of what phase 1 brought, in the order in which phase 2 sends them
  std::vector<int64_t> second_sent, second_received;  // rows by node
};

NodeExchange plan_node_exchange(const CountMatrix& counts, int me, int node_ranks);

// Whether a group of `ranks` consists of at least two nodes of `node_ranks` (at least two) consecutive positions.
bool has_whole_nodes(int ranks, int node_ranks);

// The links of three pairs of positions stand for all: 0 and 1, 0 and p, 0 and p + 1.
struct NodeLinks {
  LinkFacts inside;  // of two ranks of a node
  LinkFacts rail;    // of ranks of equal local rank
  LinkFacts across;  // of ranks of other nodes and another local rank
};

enum class AllToAllPath : uint8_t { flat, by_node };

// The estimated time of the slowest rank, found by playing all messages through the cards of the ranks: latencies, bytes, overheads, and
// what waits for what where the links of a rank share its card. (The direct exchange suffers there when all ranks of a node reach the same
// receiver at once.)
std::chrono::nanoseconds cost(AllToAllPath path, const CountMatrix& counts, int64_t row_bytes, int node_ranks, const NodeLinks& links);
// The cheaper path; flat where both cost the same, and without whole nodes.
AllToAllPath choose_all_to_all(const CountMatrix& counts, int64_t row_bytes, int node_ranks, const NodeLinks& links);

}  // namespace cairn::comm
