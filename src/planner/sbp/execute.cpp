#include "planner/sbp/execute.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/redistribute.h"
#include "mesh/redistribute_autograd.h"

namespace cairn::planner {
namespace {

void compare_plans(comm::World& world, const PlacedGraph& placed) {
  comm::Group& group = world.group(placed.mesh.members(), "placed graph");
  const at::Tensor own = at::full({1}, static_cast<int64_t>(hash_of(placed) >> 1), at::kLong), all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, own, {comm::Purpose::control, "the plan"}).wait();
  std::vector<int> others;
  for (int i = 0; i < group.size(); ++i)
    if (all.data_ptr<int64_t>()[i] != own.item<int64_t>()) others.push_back(placed.mesh.members()[static_cast<size_t>(i)]);
  if (!others.empty())
    base::fail_input("ranks {} have another plan than rank {}: give all ranks the same recipe, mesh and program", fmt::join(others, ", "),
                     world.rank());
}

// The indices of a dim that this rank has, which must be one interval.
mesh::Interval indices_here(const GraphTensor& tensor, const NdSbp& nd_sbp, size_t dim, const mesh::Mesh& mesh, int rank) {
  const std::vector<mesh::Box> all = mesh::boxes(placement_of(tensor, nd_sbp, mesh), mesh, rank, tensor.shape);
  for (const mesh::Box& box : all)
    CAIRN_CHECK(box.dims[dim] == all[0].dims[dim], "{}: this rank's indices are not one interval", tensor.name);
  return all.at(0).dims[dim];
}

// Cross entropy with the vocabulary split over ranks: they exchange the log of their sums of exponentials and their part of the target's
// logit. Returns a partial sum of the loss whose gradient is that of this rank's logits.
at::Tensor vocab_parallel_cross_entropy(comm::World& world, const PlacedGraph& placed, size_t o, const at::Tensor& logits,
                                        const at::Tensor& targets) {
  const GraphOp& op = placed.graph.ops[o];
  const mesh::Mesh& mesh = placed.mesh;
  const std::vector<NdSbp>& needs = placed.needs[o];
  const GraphTensor& whole = placed.graph.tensors[static_cast<size_t>(op.inputs[0])];
  const mesh::Interval here = indices_here(whole, needs[0], 2, mesh, world.rank());
  const at::Tensor elsewhere = targets.lt(here.begin).logical_or(targets.ge(here.end));
  const at::Tensor picked =
      logits.gather(-1, (targets - here.begin).masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0);
  const at::Tensor mine = at::stack(std::vector<at::Tensor>{at::logsumexp(logits, -1), picked}).detach();
  int64_t together = 1;
  NdSbp from, to;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const bool inner = needs[0][axis] == split_of(2);
    const Sbp others = needs[1][axis].kind == Sbp::Kind::split ? split_of(needs[1][axis].dim + 1) : kReplicate;
    from.push_back(inner ? split_of(0) : others);
    to.push_back(inner ? kReplicate : others);
    if (inner) together *= mesh.axes[axis].size;
  }
  const GraphTensor pairs{.name = op.name, .shape = {2 * together, whole.shape[0], whole.shape[1]}};
  const at::Tensor all = mesh::redistribute(world, mine, Boxing(mesh, {}).change(pairs, from, to), {comm::Purpose::activation, op.name});
  const at::Tensor lse = at::logsumexp(all.view({together, 2, mine.size(1), mine.size(2)}).select(1, 0), 0);
  const at::Tensor weighed = (at::exp(logits - lse.unsqueeze(-1)).detach() * logits).sum(-1);  // has the gradient of the lse
  return weighed - weighed.detach() + lse / static_cast<double>(together) - picked;
}

// The initial gradient of a value on this rank, such that the sum over all ranks is 1.
double seed_of(const NdSbp& nd_sbp, const mesh::Mesh& mesh, int rank) {
  for (size_t axis = 0; axis < nd_sbp.size(); ++axis)
    if (nd_sbp[axis] == kReplicate && mesh.coordinate(rank, mesh.axes[axis].name) > 0) return 0;
  return 1;
}

void simulate_compute(comm::World& world, double flops, const ExecuteOptions& options) {
  if (options.flops_per_s <= 0) return;
  world.timer(world.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(flops / options.flops_per_s * 1e9))).wait();
}

}  // namespace

at::Tensor local_part(const at::Tensor& whole, const GraphTensor& tensor, const NdSbp& nd_sbp, const mesh::Mesh& mesh, int rank) {
  NdSbp values = nd_sbp;
  bool mine = true;
  for (size_t axis = 0; axis < nd_sbp.size(); ++axis)
    if (nd_sbp[axis] == kPartial) {
      values[axis] = kReplicate;
      mine = mine && mesh.coordinate(rank, mesh.axes[axis].name) == 0;
    }
  at::Tensor part = whole;
  for (const mesh::Placement::OnAxis& on : placement_of(tensor, values, mesh).axes) {
    const mesh::Placement one{.axes = {on}};
    std::vector<at::Tensor> pieces;
    const int64_t dim =
        std::holds_alternative<mesh::Split>(on.how) ? std::get<mesh::Split>(on.how).dim : std::get<mesh::Ragged>(on.how).dim;
    // Later axes cut what earlier ones left.
    for (const mesh::Box& box : mesh::boxes(one, mesh, rank, part.sizes().vec())) {
      const mesh::Interval& cut = box.dims[static_cast<size_t>(dim)];
      pieces.push_back(part.narrow(dim, cut.begin, cut.length()));
    }
    part = pieces.empty() ? part.narrow(dim, 0, 0) : at::cat(pieces, dim);
  }
  return mine ? part.contiguous() : at::zeros_like(part);
}

ExecutionResult execute(comm::World& world, const PlacedGraph& placed, const LocalTensors& held, const ExecuteOptions& options) {
  compare_plans(world, placed);
  const int rank = world.rank();
  const OpGraph& graph = placed.graph;
  const Boxing boxing(placed.mesh, {});
  std::vector<at::Tensor> made(graph.tensors.size());
  std::vector<at::Tensor> leaves;
  std::vector<size_t> parameters;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.kind == GraphTensor::Kind::value) continue;
    const auto found = held.find(tensor.name);
    if (found == held.end()) base::fail_input("no value is given for {}", tensor.name);
    made[t] = found->second;
    if (tensor.kind == GraphTensor::Kind::parameter && tensor.differentiable && placed.training) {
      made[t] = made[t].detach().requires_grad_();
      leaves.push_back(made[t]);
      parameters.push_back(t);
    }
  }
  double all_flops = 0;
  std::map<std::pair<int, NdSbp>, at::Tensor> moved;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const GraphOp& op = graph.ops[o];
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const auto t = static_cast<size_t>(op.inputs[i]);
      const GraphTensor& tensor = graph.tensors[t];
      const NdSbp& to = placed.needs[o][i];
      if (placed.tensors[t] == to) {
        inputs.push_back(made[t]);
        continue;
      }
      at::Tensor& there = moved[{op.inputs[i], to}];
      if (!there.defined()) {
        const auto plan = std::make_shared<const mesh::RedistributePlan>(boxing.change(tensor, placed.tensors[t], to));
        const bool parameter = tensor.kind == GraphTensor::Kind::parameter;
        const comm::Label label{parameter ? comm::Purpose::parameter : comm::Purpose::activation, tensor.name};
        there = tensor.differentiable ? mesh::redistribute_differentiably(world, made[t], plan, label)
                                      : mesh::redistribute(world, made[t], *plan, label);
      }
      inputs.push_back(there);
    }
    const auto indices_of = [&](size_t input, size_t dim) {
      return indices_here(graph.tensors[static_cast<size_t>(op.inputs[input])], placed.needs[o][input], dim, placed.mesh, rank);
    };
    LocalRanges here;
    if (op.kind == GraphOp::Kind::lookup) here.rows = indices_of(0, 0);
    if (op.kind == GraphOp::Kind::elementwise && inputs[0].dim() == 3) here.positions = indices_of(0, 1);
    const double flops = op.flops / static_cast<double>(parallel_degree(placed.mesh, placed.needs[o]));
    simulate_compute(world, flops, options);
    all_flops += flops;
    made[static_cast<size_t>(op.output)] = inner_bytes(placed.mesh, op, placed.needs[o]) > 0
                                               ? vocab_parallel_cross_entropy(world, placed, o, inputs[0], inputs[1])
                                               : compute(graph, op, inputs, here);
  }
  const auto last = static_cast<size_t>(graph.ops.back().output);
  ExecutionResult executed;
  if (!leaves.empty()) {
    simulate_compute(world, 2 * all_flops, options);
    const at::Tensor seed = at::full_like(made[last], seed_of(placed.tensors[last], placed.mesh, rank));
    const auto gradients =
        torch::autograd::grad({made[last]}, leaves, {seed}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const GraphTensor& tensor = graph.tensors[parameters[i]];
      const at::Tensor terms = gradients[i].defined() ? gradients[i] : at::zeros_like(leaves[i]);
      executed.gradients[tensor.name] =
          mesh::redistribute(world, terms, boxing.gradient_change(tensor, placed.tensors[parameters[i]], placed.gradients[parameters[i]]),
                             {comm::Purpose::gradient, tensor.name});
    }
  }
  executed.result = mesh::redistribute(world, made[last].detach(),
                                       boxing.change(graph.tensors[last], placed.tensors[last], NdSbp(placed.mesh.axes.size())),
                                       {comm::Purpose::loss, graph.tensors[last].name});
  return executed;
}

}  // namespace cairn::planner
