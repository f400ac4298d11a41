#include "planner/sbp/infer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "planner/sbp/choices.h"

namespace cairn::planner {
namespace {

std::vector<std::string> names_of(const OpGraph& graph) {
  std::vector<std::string> names;
  for (const GraphTensor& tensor : graph.tensors) names.push_back(tensor.name);
  return names;
}

int find_fixed(const OpGraph& graph, const std::string& name, const NdSbp& nd_sbp, const mesh::Mesh& mesh) {
  const int place = graph.find(name);
  if (place < 0) base::fail_unknown("tensor", name, names_of(graph));
  const GraphTensor& tensor = graph.tensors[static_cast<size_t>(place)];
  if (nd_sbp.size() != mesh.axes.size())
    base::fail_input("{}: {} placements are given for the {} axes of {}", name, nd_sbp.size(), mesh.axes.size(), mesh::to_string(mesh));
  for (size_t i = 0; i < nd_sbp.size(); ++i)
    if (nd_sbp[i].kind == Sbp::Kind::split && nd_sbp[i].dim >= static_cast<int>(tensor.shape.size()))
      base::fail_input("{}: {} along {}, and the tensor has {} dims", name, to_string(nd_sbp[i]), mesh.axes[i].name, tensor.shape.size());
  if (!fits(tensor, nd_sbp, mesh))
    base::fail_input("{}: {} cuts a dim into more parts than it has, or apart what belongs together", name, to_string(nd_sbp, mesh));
  return place;
}

// Every combination of the axes' signatures that fits the tensors.
std::vector<Choice> choices_of(const OpGraph& graph, const GraphOp& op, const Boxing& boxing, bool training) {
  const mesh::Mesh& mesh = boxing.mesh();
  std::vector<Choice> all{{std::vector<NdSbp>(op.inputs.size()), {}}};
  for (const mesh::Axis& axis : mesh.axes) {
    std::vector<Choice> longer;
    for (const Choice& so_far : all)
      for (const SbpSignature& signature : signatures(graph, op, axis.size)) {
        Choice& next = longer.emplace_back(so_far);
        for (size_t i = 0; i < op.inputs.size(); ++i) next.inputs[i].push_back(signature.inputs[i]);
        next.output.push_back(signature.output);
      }
    all = std::move(longer);
  }
  std::erase_if(all, [&](const Choice& choice) {
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (!fits(graph.tensors[static_cast<size_t>(op.inputs[i])], choice.inputs[i], mesh)) return true;
    return !fits(graph.tensors[static_cast<size_t>(op.output)], choice.output, mesh);
  });
  const double speed = boxing.cost_model().flops_per_s;
  for (Choice& choice : all)
    choice.work = op.flops * (training ? 3 : 1) / static_cast<double>(parallel_degree(mesh, choice.inputs)) / (speed > 0 ? speed : 1);
  return all;
}

void check_terms(const OpGraph& graph, int tensor, const NdSbp& nd_sbp, const std::vector<std::vector<Choice>>& choices) {
  if (std::find(nd_sbp.begin(), nd_sbp.end(), kPartial) == nd_sbp.end()) return;
  for (const int reader : graph.readers(tensor)) {
    const GraphOp& op = graph.ops[static_cast<size_t>(reader)];
    const auto input = static_cast<size_t>(std::find(op.inputs.begin(), op.inputs.end(), tensor) - op.inputs.begin());
    for (size_t axis = 0; axis < nd_sbp.size(); ++axis) {
      const auto& all = choices[static_cast<size_t>(reader)];
      const bool accepts_partial = std::any_of(all.begin(), all.end(), [&](const Choice& c) { return c.inputs[input][axis] == kPartial; });
      if (nd_sbp[axis] == kPartial && !accepts_partial)
        base::fail_input("{}: is fixed as partial sums (P), and {} is not linear in it: fix it as B or S",
                         graph.tensors[static_cast<size_t>(tensor)].name, op.name);
    }
  }
}

}  // namespace

double PlacementProblem::transfer_cost(int place, const NdSbp& from, const NdSbp& to) const {
  if (from == to) return 0;
  if (makes_partial(from, to)) return kInfeasible;
  return boxing.estimate(tensor(place), from, to, options.training);
}

NdSbp PlacementProblem::gradient_sbp(int parameter, const NdSbp& kept) const {
  const auto said = options.gradients.find(tensor(parameter).name);
  return said == options.gradients.end() ? kept : said->second;
}

double PlacementProblem::gradient_cost(int parameter, const NdSbp& nd_sbp) const {
  if (std::find(nd_sbp.begin(), nd_sbp.end(), kPartial) != nd_sbp.end()) return kInfeasible;
  return options.training ? boxing.estimate_gradient(tensor(parameter), nd_sbp, gradient_sbp(parameter, nd_sbp)) : 0;
}

namespace {

// Whether every parameter that an operation reads is whole along the sample axes.
bool reads_whole_parameters(const OpGraph& graph, const GraphOp& op, const Choice& choice, const mesh::Mesh& mesh,
                            const std::vector<std::string>& sample_axes) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (graph.tensors[static_cast<size_t>(op.inputs[i])].kind != GraphTensor::Kind::parameter) continue;
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis)
      if (choice.inputs[i][axis] != kReplicate &&
          std::find(sample_axes.begin(), sample_axes.end(), mesh.axes[axis].name) != sample_axes.end())
        return false;
  }
  return true;
}

}  // namespace

PlacementProblem make_problem(const OpGraph& graph, Boxing& boxing, const InferOptions& options) {
  check(graph);
  const mesh::Mesh& mesh = boxing.mesh();
  PlacementProblem problem{graph, boxing, options, {}, std::vector<std::optional<NdSbp>>(graph.tensors.size())};
  for (const GraphOp& op : graph.ops) {
    std::vector<Choice> all = choices_of(graph, op, boxing, options.training);
    if (options.data_parallel)
      std::erase_if(all, [&](const Choice& one) { return !reads_whole_parameters(graph, op, one, mesh, options.sample_axes); });
    for (Choice& choice : all) choice.inner = inner_cost(mesh, boxing.cost_model(), inner_bytes(mesh, op, choice.inputs));
    problem.choices.push_back(std::move(all));
  }
  for (const auto& [name, nd_sbp] : options.gradients) find_fixed(graph, name, nd_sbp, mesh);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.kind != GraphTensor::Kind::input) continue;
    NdSbp nd_sbp(mesh.axes.size());
    for (size_t axis = 0; axis < nd_sbp.size() && tensor.of_samples && !tensor.shape.empty(); ++axis) {
      const auto& samples = options.sample_axes;
      if (std::find(samples.begin(), samples.end(), mesh.axes[axis].name) == samples.end()) continue;
      nd_sbp[axis] = split_of(0);
      if (!fits(tensor, nd_sbp, mesh)) nd_sbp[axis] = kReplicate;
    }
    problem.decided[t] = nd_sbp;
  }
  for (const auto& [name, nd_sbp] : options.fixed) {
    const int place = find_fixed(graph, name, nd_sbp, mesh);
    problem.decided[static_cast<size_t>(place)] = nd_sbp;
    check_terms(graph, place, nd_sbp, problem.choices);
  }
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const int output = graph.ops[o].output;
    if (const auto& wanted = problem.decided[static_cast<size_t>(output)]) {
      std::erase_if(problem.choices[o], [&](const Choice& choice) { return choice.output != *wanted; });
      if (problem.choices[o].empty())
        base::fail_input("{}: {} is fixed, and no way to compute {} gives that", graph.tensors[static_cast<size_t>(output)].name,
                         to_string(*wanted, mesh), graph.ops[o].name);
    }
  }
  return problem;
}

PlacedGraph apply_choices(const PlacementProblem& problem, const std::vector<size_t>& chosen) {
  const OpGraph& graph = problem.graph;
  PlacedGraph placed{.mesh = problem.boxing.mesh(),
                     .graph = graph,
                     .training = problem.options.training,
                     .tensors = std::vector<NdSbp>(graph.tensors.size()),
                     .gradients = std::vector<NdSbp>(graph.tensors.size())};
  std::vector<std::optional<NdSbp>> lie = problem.decided;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const Choice& choice = problem.choices[o][chosen[o]];
    placed.needs.push_back(choice.inputs);
    lie[static_cast<size_t>(graph.ops[o].output)] = choice.output;
    for (size_t i = 0; i < choice.inputs.size(); ++i)
      if (auto& nd_sbp = lie[static_cast<size_t>(graph.ops[o].inputs[i])]; !nd_sbp) nd_sbp = choice.inputs[i];
  }
  for (size_t t = 0; t < lie.size(); ++t) {
    placed.tensors[t] = lie[t] ? *lie[t] : NdSbp(placed.mesh.axes.size());
    placed.gradients[t] =
        graph.tensors[t].kind == GraphTensor::Kind::parameter ? problem.gradient_sbp(static_cast<int>(t), placed.tensors[t]) : NdSbp{};
  }
  add_moves(placed, problem.boxing);
  return placed;
}

PlacedGraph infer(const OpGraph& graph, Boxing& boxing, const InferOptions& options) {
  const PlacementProblem problem = make_problem(graph, boxing, options);
  const std::vector<size_t> greedy = choose_greedily(problem);
  PlacedGraph result = apply_choices(problem, greedy);
  if (options.by == InferOptions::By::greedy) return result;
  const std::optional<std::vector<size_t>> best = choose_best(problem);
  PlacedGraph searched = apply_choices(problem, best ? *best : improve_by_axis(problem, greedy));
  // Ties go to the search, which also minimises work.
  return searched.cost <= result.cost ? searched : result;
}

}  // namespace cairn::planner
