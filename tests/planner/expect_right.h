#pragma once
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "harness/ranks.h"
#include "kernels/aten.h"
#include "planner/graph/example_graphs.h"
#include "planner/sbp/execute.h"
#include "planner/sbp/infer.h"

namespace cairn::planner {

// Runs the plan on real values: the loss and every gradient are those of one process, and the ledger shows the bytes it promised.
inline void expect_right(const PlacedGraph& placed) {
  const LocalTensors whole = example_values(placed.graph);
  Boxing alone(mesh::parse_mesh("dp=1"), {});
  const PlacedGraph single = infer(placed.graph, alone, {.by = InferOptions::By::greedy});
  ExecutionResult expected;
  harness::on_ranks(1, [&](comm::World& world) { expected = execute(world, single, whole); });
  const int ranks = placed.mesh.size();
  std::vector<ExecutionResult> ran(static_cast<size_t>(ranks));
  const harness::Run run = harness::on_ranks(ranks, [&](comm::World& world) {
    LocalTensors mine;
    for (const auto& [name, value] : whole) {
      const auto t = static_cast<size_t>(placed.graph.find(name));
      mine[name] = local_part(value, placed.graph.tensors[t], placed.tensors[t], placed.mesh, world.rank());
    }
    ran[static_cast<size_t>(world.rank())] = execute(world, placed, mine);
  });
  const std::string about = mesh::to_string(placed.mesh) + "\n" + describe(placed);
  for (int rank = 0; rank < ranks; ++rank) {
    const ExecutionResult& here = ran[static_cast<size_t>(rank)];
    EXPECT_NEAR(here.result.item<double>(), expected.result.item<double>(), 1e-12) << about;
    for (const auto& [name, gradient] : here.gradients) {
      const auto t = static_cast<size_t>(placed.graph.find(name));
      const at::Tensor right = local_part(expected.gradients.at(name), placed.graph.tensors[t], placed.gradients[t], placed.mesh, rank);
      ASSERT_LT((gradient - right).abs().max().item<double>(), 1e-11) << name << " on rank " << rank << " of " << about;
    }
  }
  int64_t bytes = 0;
  for (const comm::Purpose purpose : {comm::Purpose::activation, comm::Purpose::parameter, comm::Purpose::gradient})
    bytes += run.ledger.total(purpose).bytes;
  EXPECT_EQ(bytes, placed.bytes) << about;
}

}  // namespace cairn::planner
