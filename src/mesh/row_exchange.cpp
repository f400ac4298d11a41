#include "mesh/row_exchange.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "base/log.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

// Second phases start when ranks wait, so their groups need an order of operations of their own.
constexpr std::string_view kInsideNode = "rows inside the node", kAlongRail = "rows along the rail";

int64_t row_elements(const at::Tensor& rows) {
  return std::accumulate(rows.sizes().begin() + 1, rows.sizes().end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> in_elements(std::vector<int64_t> rows, int64_t width) {
  for (int64_t& count : rows) count *= width;
  return rows;
}

at::Tensor packed(const at::Tensor& rows, const std::vector<comm::RowRange>& ranges) {
  std::vector<at::Tensor> pieces;
  for (const comm::RowRange& range : ranges)
    if (range.rows > 0) pieces.push_back(rows.narrow(0, range.first, range.rows));
  return pieces.empty() ? rows.narrow(0, 0, 0).contiguous() : at::cat(pieces);
}

at::Tensor rows_like(const at::Tensor& rows, int64_t count) {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape.front() = count;
  return at::empty(shape, rows.options());
}

int64_t sum_of(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

std::vector<int> world_ranks(const comm::Group& group, const std::vector<int>& positions) {
  std::vector<int> ranks;
  for (const int position : positions) ranks.push_back(group.ranks()[static_cast<size_t>(position)]);
  return ranks;
}

}  // namespace

RowExchange::RowExchange(comm::Group& group, int node_ranks, RowPath path) : group_(group), node_ranks_(node_ranks), path_(path) {
  if (comm::has_whole_nodes(group.size(), node_ranks)) {
    const std::vector<int>& ranks = group.ranks();
    const auto facts = [&](int peer) { return group.world().transport().link_facts({ranks.front(), ranks[static_cast<size_t>(peer)]}); };
    links_ = {facts(1), facts(node_ranks), facts(node_ranks + 1)};
    return;
  }
  path_ = RowPath::flat;
  if (node_ranks > 1 && node_ranks < group.size() && group.rank() == 0)
    group.world().log().warn(
        "{} ranks are no whole nodes of {}: rows travel from rank to rank (flat), not node by node. Choose an ep extent "
        "that is a multiple of expert.node_ranks.",
        group.size(), node_ranks);
}

comm::AllToAllPath RowExchange::path_of(const comm::CountMatrix& counts, int64_t row_bytes) const {
  if (path_ == RowPath::flat) return comm::AllToAllPath::flat;
  if (path_ == RowPath::by_node) return comm::AllToAllPath::by_node;
  return comm::choose_all_to_all(counts, row_bytes, node_ranks_, links_);
}

comm::Work RowExchange::start(const at::Tensor& out, const at::Tensor& in, const comm::CountMatrix& counts, comm::Label label) const {
  const int me = group_.rank();
  const std::vector<int64_t> sent = counts.sent_by(me), received = counts.received_by(me);
  CAIRN_CHECK(
      counts.ranks == group_.size() && in.dim() > 0 && out.dim() > 0 && in.size(0) == sum_of(sent) && out.size(0) == sum_of(received),
      "rank {} hands in {} rows and room for {}; by the count matrix of {} ranks it sends {} and gets {}", me, in.size(0), out.size(0),
      counts.ranks, sum_of(sent), sum_of(received));
  const int64_t width = row_elements(in);
  if (path_of(counts, width * in.element_size()) == comm::AllToAllPath::flat)
    return group_.all_to_all(out, in, label, in_elements(received, width), in_elements(sent, width));
  const comm::NodeExchange plan = comm::plan_node_exchange(counts, me, node_ranks_);
  comm::World& world = group_.world();
  const at::Tensor carried = packed(in, plan.pack_first);
  const at::Tensor brought = rows_like(in, sum_of(plan.first_received));
  const comm::Work first =
      world.group(world_ranks(group_, plan.node), kInsideNode)
          .all_to_all(brought, carried, label, in_elements(plan.first_received, width), in_elements(plan.first_sent, width));
  comm::Group& rail = world.group(world_ranks(group_, plan.rail), kAlongRail);
  return first.then([&rail, plan, out, brought, carried, width, purpose = label.purpose, what = std::string(label.what)] {
    rail.all_to_all(out, packed(brought, plan.pack_second), {purpose, what}, in_elements(plan.second_received, width),
                    in_elements(plan.second_sent, width))
        .wait();
  });
}

}  // namespace cairn::mesh
