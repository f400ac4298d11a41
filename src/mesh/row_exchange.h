#pragma once
#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/collectives/node_exchange.h"
#include "comm/count_matrix.h"
#include "comm/label.h"
#include "comm/work.h"

namespace cairn::comm {
class Group;
}

namespace cairn::mesh {

// Which way the rows of an all-to-all take. by_links: whichever is faster by the links and the counts, decided per call and equally on all
// ranks, since all know the count matrix.
enum class RowPath : uint8_t { by_links, flat, by_node };

// All-to-all of rows among the ranks of a group: the dispatch of tokens to experts. `node_ranks` consecutive positions of the group share a
// node (comm/collectives/node_exchange.h has the two-phase path). Where the group is not made of whole nodes, rows travel the flat way; a
// warning says so once, unless there are no nodes to speak of (node_ranks 0 or 1, or one node).
//
// Works on every transport: each phase is an all_to_all of a smaller group. The second phase starts when the work is waited for, so several
// exchanges in flight must be waited for in the same order on all ranks.
class RowExchange {
 public:
  RowExchange(comm::Group& group, int node_ranks, RowPath path = RowPath::by_links);

  // Rows are indices of dim 0. `in` has the rows for position 0 first, then those for 1, ...; `out` gets those of position 0 first, then
  // those of 1, ... Both are contiguous, with as many rows as the matrix says. Neither may be touched before the work is done.
  comm::Work start(const at::Tensor& out, const at::Tensor& in, const comm::CountMatrix& counts, comm::Label label) const;

  // The path that `start` takes for these counts.
  comm::AllToAllPath path_of(const comm::CountMatrix& counts, int64_t row_bytes) const;

 private:
  comm::Group& group_;
  int node_ranks_;
  RowPath path_;
  comm::NodeLinks links_;
};

}  // namespace cairn::mesh
