#include "planner/infer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "planner/choices.h"

namespace cairn::planner {
namespace {

std::vector<std::string> names_of(const OpGraph& graph) {
  std::vector<std::string> names;
  for (const GraphTensor& tensor : graph.tensors) names.push_back(tensor.name);
  return names;
}

int find_fixed(const OpGraph& graph, const std::string& name, const Forms& forms, const mesh::Mesh& mesh) {
  const int place = graph.find(name);
  if (place < 0) base::fail_unknown("tensor", name, names_of(graph));
  const GraphTensor& tensor = graph.tensors[static_cast<size_t>(place)];
  if (forms.size() != mesh.axes.size())
    base::fail_input("{}: {} forms are given for the {} axes of {}", name, forms.size(), mesh.axes.size(), mesh::to_string(mesh));
  for (size_t i = 0; i < forms.size(); ++i)
    if (forms[i].kind == Form::Kind::split && forms[i].dim >= static_cast<int>(tensor.shape.size()))
      base::fail_input("{}: {} along {}, and the tensor has {} dims", name, to_string(forms[i]), mesh.axes[i].name, tensor.shape.size());
  if (!fits(tensor, forms, mesh))
    base::fail_input("{}: {} cuts a dim into more parts than it has, or apart what belongs together", name, to_string(forms, mesh));
  return place;
}

// Every combination of the axes' signatures that fits the tensors.
std::vector<Choice> choices_of(const OpGraph& graph, const GraphOp& op, const Boxing& boxing, bool training) {
  const mesh::Mesh& mesh = boxing.mesh();
  std::vector<Choice> all{{std::vector<Forms>(op.inputs.size()), {}}};
  for (const mesh::Axis& axis : mesh.axes) {
    std::vector<Choice> longer;
    for (const Choice& so_far : all)
      for (const Signature& signature : signatures(graph, op, axis.size)) {
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
  const double speed = boxing.prices().flops_per_s;
  for (Choice& choice : all)
    choice.work = op.flops * (training ? 3 : 1) / static_cast<double>(ways_of(mesh, choice.inputs)) / (speed > 0 ? speed : 1);
  return all;
}

void check_terms(const OpGraph& graph, int tensor, const Forms& forms, const std::vector<std::vector<Choice>>& choices) {
  if (std::find(forms.begin(), forms.end(), kPartial) == forms.end()) return;
  for (const int reader : graph.readers(tensor)) {
    const GraphOp& op = graph.ops[static_cast<size_t>(reader)];
    const auto input = static_cast<size_t>(std::find(op.inputs.begin(), op.inputs.end(), tensor) - op.inputs.begin());
    for (size_t axis = 0; axis < forms.size(); ++axis) {
      const auto& all = choices[static_cast<size_t>(reader)];
      const bool takes = std::any_of(all.begin(), all.end(), [&](const Choice& c) { return c.inputs[input][axis] == kPartial; });
      if (forms[axis] == kPartial && !takes)
        base::fail_input("{}: is fixed as terms of a sum (P), and {} is no linear function of it: fix it as B or S",
                         graph.tensors[static_cast<size_t>(tensor)].name, op.name);
    }
  }
}

}  // namespace

double Problem::move(int place, const Forms& from, const Forms& to) const {
  if (from == to) return 0;
  if (makes_terms(from, to)) return kNever;
  return boxing.about(tensor(place), from, to, options.training);
}

Forms Problem::gradient_forms(int parameter, const Forms& kept) const {
  const auto said = options.gradients.find(tensor(parameter).name);
  return said == options.gradients.end() ? kept : said->second;
}

double Problem::keep(int parameter, const Forms& forms) const {
  if (std::find(forms.begin(), forms.end(), kPartial) != forms.end()) return kNever;
  return options.training ? boxing.about_gradient(tensor(parameter), forms, gradient_forms(parameter, forms)) : 0;
}

Problem pose(const OpGraph& graph, Boxing& boxing, const InferOptions& options) {
  check(graph);
  const mesh::Mesh& mesh = boxing.mesh();
  Problem problem{graph, boxing, options, {}, std::vector<std::optional<Forms>>(graph.tensors.size())};
  for (const GraphOp& op : graph.ops) {
    std::vector<Choice> all = choices_of(graph, op, boxing, options.training);
    for (Choice& choice : all) choice.inner = inner_cost(mesh, boxing.prices(), inner_bytes(mesh, op, choice.inputs));
    problem.choices.push_back(std::move(all));
  }
  for (const auto& [name, forms] : options.gradients) find_fixed(graph, name, forms, mesh);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.kind != GraphTensor::Kind::input) continue;
    Forms forms(mesh.axes.size());
    for (size_t axis = 0; axis < forms.size() && tensor.of_samples && !tensor.shape.empty(); ++axis) {
      const auto& samples = options.sample_axes;
      if (std::find(samples.begin(), samples.end(), mesh.axes[axis].name) == samples.end()) continue;
      forms[axis] = split_of(0);
      if (!fits(tensor, forms, mesh)) forms[axis] = kReplicate;
    }
    problem.decided[t] = forms;
  }
  for (const auto& [name, forms] : options.fixed) {
    const int place = find_fixed(graph, name, forms, mesh);
    problem.decided[static_cast<size_t>(place)] = forms;
    check_terms(graph, place, forms, problem.choices);
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

Placed placed_by(const Problem& problem, const std::vector<size_t>& chosen) {
  const OpGraph& graph = problem.graph;
  Placed placed{.mesh = problem.boxing.mesh(),
                .graph = graph,
                .training = problem.options.training,
                .tensors = std::vector<Forms>(graph.tensors.size()),
                .gradients = std::vector<Forms>(graph.tensors.size())};
  std::vector<std::optional<Forms>> lie = problem.decided;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const Choice& choice = problem.choices[o][chosen[o]];
    placed.needs.push_back(choice.inputs);
    lie[static_cast<size_t>(graph.ops[o].output)] = choice.output;
    for (size_t i = 0; i < choice.inputs.size(); ++i)
      if (auto& forms = lie[static_cast<size_t>(graph.ops[o].inputs[i])]; !forms) forms = choice.inputs[i];
  }
  for (size_t t = 0; t < lie.size(); ++t) {
    placed.tensors[t] = lie[t] ? *lie[t] : Forms(placed.mesh.axes.size());
    placed.gradients[t] =
        graph.tensors[t].kind == GraphTensor::Kind::parameter ? problem.gradient_forms(static_cast<int>(t), placed.tensors[t]) : Forms{};
  }
  settle(placed, problem.boxing);
  return placed;
}

Placed infer(const OpGraph& graph, Boxing& boxing, const InferOptions& options) {
  const Problem problem = pose(graph, boxing, options);
  const std::vector<size_t> greedy = choose_greedily(problem);
  Placed result = placed_by(problem, greedy);
  if (options.by == InferOptions::By::greedy) return result;
  const std::optional<std::vector<size_t>> best = choose_best(problem);
  Placed searched = placed_by(problem, best ? *best : improve_by_axis(problem, greedy));
  // Ties go to the search: it also shares work out.
  return searched.cost <= result.cost ? searched : result;
}

}  // namespace cairn::planner
