#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "kernels/row_groups.h"
#include "mesh/gradients.h"

namespace cairn::model {

class Saved;
struct Call;

// Rows that may be in flight: `rows` must not be read before `ready` is done.
struct ExpertRows {
  at::Tensor rows;  // [n, embed]
  comm::Work ready = comm::Work::done();
};

// The way of the rows of one block in one micro-batch, from the ranks of the tokens to those of the experts and back. All four calls are
// collective over the ranks that share the experts, in the order of the calls, also on ranks without rows. Each is started by the call and
// complete when its `ready` is.
//
//   forward    dispatch            rows of tokens, by global expert   -> rows of this rank's experts, by local expert
//              combine             results, by local expert           -> results of the rows of this rank's tokens, in their order
//   backward   combine_backward    gradients of what combine gave     -> gradients of the results, by local expert
//              dispatch_backward   gradients of what dispatch gave    -> gradients of the rows of this rank's tokens
//
// Where rows travel as they are, combine_backward moves rows as dispatch does and dispatch_backward as combine does. A transform of the
// payload (centroids in the place of rows) differentiates itself in them.
class ExpertRoute {
 public:
  virtual ~ExpertRoute() = default;
  // The rows that arrive here, by local expert: the experts that Weights::get gives for the block's expert weights, in ascending order of
  // their ids. Waits for the counts of other ranks.
  virtual const kernels::RowGroups& local_groups() = 0;
  virtual ExpertRows dispatch(const at::Tensor& rows) = 0;
  virtual ExpertRows combine(const at::Tensor& results) = 0;
  virtual ExpertRows combine_backward(const at::Tensor& gradient) = 0;
  virtual ExpertRows dispatch_backward(const at::Tensor& gradient) = 0;
  // Puts what the backward calls need into `into`, under names that begin with "route.".
  virtual void save(Saved& into) = 0;
};

// What a route is made for.
struct ExpertRequest {
  std::string_view block;     // the block's name, the same on all ranks
  mesh::ParamId weight;       // the stacked weights of its experts; Weights::placement says who holds which
  kernels::RowGroups groups;  // the rows of this rank's tokens, by global expert
};

// How rows reach the ranks that hold their experts. PassOptions::experts holds it for a run; null: every rank holds all experts. One object
// serves all blocks and micro-batches in flight.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  // Starts the exchange of counts. A recomputed forward pass makes the same route again.
  virtual std::unique_ptr<ExpertRoute> begin(const ExpertRequest& request, const Call& call) const = 0;
  // The route of the forward pass, for the backward calls: from what ExpertRoute::save put into `saved`, which stays there.
  virtual std::unique_ptr<ExpertRoute> resume(const ExpertRequest& request, Saved& saved, const Call& call) const = 0;
  // Metrics of this rank's passes since the last call, by the names that a run writes them under.
  virtual std::vector<std::pair<std::string, double>> take_metrics() { return {}; }
};

// Every rank holds all experts: rows stay where they are.
const ExpertExchange& local_experts();

}  // namespace cairn::model
