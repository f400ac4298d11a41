#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/sbp/boxing.h"

namespace cairn::planner {

// One redistribution of a placed graph. Every rank does them in the same order.
struct Move {
  enum class When { forward, backward, gradient };  // gradient: at the end, of a parameter
  When when = When::forward;
  int tensor = -1;
  NdSbp from = {}, to = {};       // of the value; backward redistributes its gradient from dual(to) to dual(from)
  std::vector<int> readers = {};  // operations that want it
  std::string by = {};            // "all_gather", "all_reduce and all_gather"
  int64_t bytes = 0;
  double cost = 0;
};

// Messages inside an operation.
struct InnerSum {
  int op = -1;
  int64_t bytes = 0;
};

// A graph with a placement on a mesh for every tensor, and the redistributions that follow.
struct PlacedGraph {
  mesh::Mesh mesh;
  OpGraph graph;
  bool training = true;
  std::vector<NdSbp> tensors = {};             // as each is produced or kept
  std::vector<NdSbp> gradients = {};           // of parameters: where their gradients end up
  std::vector<std::vector<NdSbp>> needs = {};  // by operation and input: what it wants
  std::vector<Move> moves = {};
  std::vector<InnerSum> inner = {};
  int64_t bytes = 0;  // of a pass and its gradients, sent by all ranks together
  double cost = 0;
  double flops = 0;  // of the busiest rank
};

// Fills in moves, messages inside operations and totals, from the placements.
void add_moves(PlacedGraph& placed, Boxing& boxing);

// Over how many ranks the work of an operation is split, with inputs placed so.
int64_t parallel_degree(const mesh::Mesh& mesh, const std::vector<NdSbp>& needs);

// What an operation with inputs placed so sends inside: each of the ranks that split the index sends something to all others.
int64_t inner_bytes(const mesh::Mesh& mesh, const GraphOp& op, const std::vector<NdSbp>& needs);

double inner_cost(const mesh::Mesh& mesh, const CostModel& cost_model, int64_t bytes);

// Tables of tensors and of moves, for people.
std::string describe(const PlacedGraph& placed);
// The same as JSON, and a hash that ranks compare before they start.
std::string to_json(const PlacedGraph& placed);
uint64_t hash_of(const PlacedGraph& placed);

}  // namespace cairn::planner
