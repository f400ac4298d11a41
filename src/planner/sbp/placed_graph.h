#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/sbp/boxing.h"

namespace cairn::planner {

// One change of placement that a placed graph does, in the order in which every rank does them.
struct Move {
  enum class When { forward, backward, gradient };  // gradient: at the end, of a parameter
  When when = When::forward;
  int tensor = -1;
  NdSbp from = {}, to = {};       // of the value; backward moves its gradient the other way between their duals
  std::vector<int> readers = {};  // operations it is for
  std::string by = {};            // "all_gather", "all_reduce and all_gather"
  int64_t bytes = 0;
  double cost = 0;
};

// Messages inside an operation.
struct InnerSum {
  int op = -1;
  int64_t bytes = 0;
};

// A graph whose every tensor has a place on a mesh.
struct PlacedGraph {
  mesh::Mesh mesh;
  OpGraph graph;
  bool training = true;
  std::vector<NdSbp> tensors = {};             // how each lies where it is made or kept
  std::vector<NdSbp> gradients = {};           // of parameters: how their gradients end
  std::vector<std::vector<NdSbp>> needs = {};  // by operation, by input
  std::vector<Move> moves = {};
  std::vector<InnerSum> inner = {};
  int64_t bytes = 0;  // of a pass and its gradients, sent by all ranks together
  double cost = 0;
  double flops = 0;  // of the rank with the most to do
};

// Fills in the moves and sums of a graph from its forms.
void add_moves(PlacedGraph& placed, Boxing& boxing);

// Over how many ranks an operation is shared out whose inputs lie so.
int64_t parallel_degree(const mesh::Mesh& mesh, const std::vector<NdSbp>& needs);

// What an operation whose inputs lie so sends inside: each of the ranks that share an index out tells all others something.
int64_t inner_bytes(const mesh::Mesh& mesh, const GraphOp& op, const std::vector<NdSbp>& needs);

double inner_cost(const mesh::Mesh& mesh, const CostModel& cost_model, int64_t bytes);

// Tables of tensors and of moves, for people.
std::string describe(const PlacedGraph& placed);
// The same for programs, and a number that is equal where and only where plans are: ranks compare it before they start.
std::string to_json(const PlacedGraph& placed);
uint64_t hash_of(const PlacedGraph& placed);

}  // namespace cairn::planner
