#include "proofs/graph_runs.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "base/check.h"
#include "base/clock.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "mesh/redistribute.h"
#include "planner/sbp/infer.h"

namespace cairn::study {

using namespace planner;

GraphResult run_graph(const GraphRun& run) {
  const PlacedGraph& placed = run.placed;
  const Boxing boxing(placed.mesh, {});
  GraphResult result;
  std::mutex mutex;
  comm::LocalNetwork network(placed.mesh.size(), {.link = run.link});
  const std::vector<std::exception_ptr> ended = network.run([&](comm::World& world) {
    LocalTensors mine;
    for (const auto& [name, value] : run.whole) {
      const auto t = static_cast<size_t>(placed.graph.find(name));
      mine[name] = local_part(value, placed.graph.tensors[t], placed.tensors[t], placed.mesh, world.rank());
    }
    const auto begun = world.clock().now();
    ExecutionResult ran;
    for (int step = 0; step < run.steps; ++step) {
      ran = execute(world, placed, mine, {.flops_per_s = run.flops_per_s});
      if (run.rate > 0)
        for (const auto& [name, gradient] : ran.gradients) mine[name] = mine[name] - gradient * run.rate;
    }
    const double seconds = base::seconds(world.clock().now() - begun) / run.steps;
    const NdSbp whole(placed.mesh.axes.size());
    LocalTensors gradients, parameters;
    for (const auto& [name, gradient] : ran.gradients) {
      const auto t = static_cast<size_t>(placed.graph.find(name));
      const GraphTensor& tensor = placed.graph.tensors[t];
      gradients[name] =
          mesh::redistribute(world, gradient, boxing.change(tensor, placed.gradients[t], whole), {comm::Purpose::control, name});
      parameters[name] =
          mesh::redistribute(world, mine[name], boxing.change(tensor, placed.tensors[t], whole), {comm::Purpose::control, name});
    }
    const std::scoped_lock lock(mutex);
    result.seconds = std::max(result.seconds, seconds);
    if (world.rank() > 0) return;
    result.loss = ran.result.item<double>();
    result.gradients = std::move(gradients);
    result.parameters = std::move(parameters);
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  for (const comm::Purpose purpose : {comm::Purpose::activation, comm::Purpose::parameter, comm::Purpose::gradient})
    result.bytes += network.ledger().total(purpose).bytes / run.steps;
  return result;
}

GraphResult run_graph_alone(const OpGraph& graph, const LocalTensors& whole, int steps, double rate) {
  Boxing boxing(mesh::parse_mesh("dp=1"), {});
  const PlacedGraph placed = infer(graph, boxing, {.by = InferOptions::By::greedy});
  return run_graph({.placed = placed, .whole = whole, .steps = steps, .rate = rate});
}

double furthest(const LocalTensors& a, const LocalTensors& b) {
  CAIRN_CHECK(a.size() == b.size(), "{} tensors and {}", a.size(), b.size());
  double most = 0;
  for (const auto& [name, value] : a) {
    const at::Tensor& other = b.at(name);
    const double size = std::max(other.abs().max().item<double>(), 1e-6);
    most = std::max(most, (value - other).abs().max().item<double>() / size);
  }
  return most;
}

}  // namespace cairn::study
