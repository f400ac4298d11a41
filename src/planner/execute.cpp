#include "planner/execute.h"

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
#include "planner/local_ops.h"

namespace cairn::planner {
namespace {

void compare_plans(comm::World& world, const Placed& placed) {
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

// The rows of a table that this rank has.
mesh::Interval rows_of(const GraphTensor& table, const Forms& forms, const mesh::Mesh& mesh, int rank) {
  const std::vector<mesh::Box> all = mesh::boxes(placement_of(table, forms, mesh), mesh, rank, table.shape);
  CAIRN_CHECK(all.size() == 1, "{}: the rows here are not together", table.name);
  return all[0].dims[0];
}

// What the gradient of a value that lies so starts with, for the sum over what all ranks start with to be 1.
double seed_of(const Forms& forms, const mesh::Mesh& mesh, int rank) {
  for (size_t axis = 0; axis < forms.size(); ++axis)
    if (forms[axis] == kReplicate && mesh.coordinate(rank, mesh.axes[axis].name) > 0) return 0;
  return 1;
}

void take(comm::World& world, double flops, const ExecuteOptions& options) {
  if (options.flops_per_s <= 0) return;
  world.timer(world.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(flops / options.flops_per_s * 1e9))).wait();
}

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const GraphTensor& tensor, const Forms& forms, const mesh::Mesh& mesh, int rank) {
  Forms values = forms;
  bool mine = true;
  for (size_t axis = 0; axis < forms.size(); ++axis)
    if (forms[axis] == kPartial) {
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

Ran execute(comm::World& world, const Placed& placed, const Held& held, const ExecuteOptions& options) {
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
  std::map<std::pair<int, Forms>, at::Tensor> moved;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const GraphOp& op = graph.ops[o];
    CAIRN_CHECK(op.inner.empty() || inner_bytes(placed.mesh, op, placed.needs[o]) == 0, "{}: sums inside it are the block's own", op.name);
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const auto t = static_cast<size_t>(op.inputs[i]);
      const GraphTensor& tensor = graph.tensors[t];
      const Forms& to = placed.needs[o][i];
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
    mesh::Interval rows{};
    if (op.kind == GraphOp::Kind::lookup)
      rows = rows_of(graph.tensors[static_cast<size_t>(op.inputs[0])], placed.needs[o][0], placed.mesh, rank);
    const double flops = op.flops / static_cast<double>(ways_of(placed.mesh, placed.needs[o]));
    take(world, flops, options);
    all_flops += flops;
    made[static_cast<size_t>(op.output)] = compute(graph, op, inputs, rows);
  }
  const auto last = static_cast<size_t>(graph.ops.back().output);
  Ran ran;
  if (!leaves.empty()) {
    take(world, 2 * all_flops, options);
    const at::Tensor seed = at::full_like(made[last], seed_of(placed.tensors[last], placed.mesh, rank));
    const auto gradients =
        torch::autograd::grad({made[last]}, leaves, {seed}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const GraphTensor& tensor = graph.tensors[parameters[i]];
      const at::Tensor terms = gradients[i].defined() ? gradients[i] : at::zeros_like(leaves[i]);
      ran.gradients[tensor.name] =
          mesh::redistribute(world, terms, boxing.gradient_change(tensor, placed.tensors[parameters[i]], placed.gradients[parameters[i]]),
                             {comm::Purpose::gradient, tensor.name});
    }
  }
  ran.result = mesh::redistribute(world, made[last].detach(),
                                  boxing.change(graph.tensors[last], placed.tensors[last], Forms(placed.mesh.axes.size())),
                                  {comm::Purpose::loss, graph.tensors[last].name});
  return ran;
}

}  // namespace cairn::planner
