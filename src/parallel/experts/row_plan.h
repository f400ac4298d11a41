#pragma once
#include <cstdint>
#include <vector>

#include "comm/count_matrix.h"
#include "mesh/ragged.h"
#include "parallel/expert_copies/token_routes.h"

namespace cairn::parallel {

// Which rows go where in one dispatch to experts, as one rank sees it. Rows leave sorted by expert id. They arrive by sender, and of each
// sender by expert id; the experts of a rank want them by expert, then by sender.
struct RowPlan {
  comm::CountMatrix counts;        // rows from each rank to each other one
  std::vector<int64_t> pack;       // the row that leaves at each place; empty: they leave in the order that they have
  std::vector<int64_t> by_expert;  // the arrived row at each place of the order by expert; empty: they arrive in it
  std::vector<int64_t> local;      // rows by local expert, ascending by id
  bool operator==(const RowPlan&) const = default;
};

// `announced`: by rank, the rows that it sends to each expert, and before them how many rows it has in all. Every rank has the same list,
// so all refuse what does not add up, and name the same rank. `experts`: who holds which. Rows of an expert that several ranks hold are
// divided over them (expert_copies/token_routes.h); `nodes`: by rank along ep.
RowPlan plan_rows(const std::vector<int64_t>& announced, int ranks, int me, const mesh::Ragged& experts, const NodeOf& nodes);

}  // namespace cairn::parallel
