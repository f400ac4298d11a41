#pragma once
#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/label.h"
#include "comm/work.h"
#include "mesh/redistribute_plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::mesh {

// A change of placement in progress. `tensor` may be read once `ready` is done. It shares the input's memory where this rank keeps its
// shard.
struct Redistributed {
  at::Tensor tensor;
  comm::Work ready;
};

// Changes the placement of a tensor. This rank passes its old shard and gets its new one. This is the only way in which a tensor changes
// placement: it picks the collective, and ZeRO, tensor parallelism, resharding a checkpoint and moving a model are all redistributions.
//
// Every rank of both meshes calls it with the same change. A rank outside `from` passes an empty tensor with the dtype and device; a rank
// outside `to` gets an empty one. Any dtype can be moved. Moved values are bitwise identical. Sums and maxima run in the order of the
// coordinates, so all ranks get bitwise identical results whatever the collective (bf16 and fp16 are summed in fp32 and rounded once).
//
// The bytes are booked under the label's purpose. No gradient is recorded; backward_of gives the change for the gradient. Do not write to
// `local` until `ready` is done. Several changes in progress must be waited for in the same order on all ranks, because a second round
// starts inside the wait.
// `name`: changes with another name have groups, and an order of operations, of their own.
Redistributed start_redistribute(comm::World& world, const at::Tensor& local, const RedistributePlan& plan, comm::Label label,
                                 std::string_view name = "");

// The same, complete on return.
at::Tensor redistribute(comm::World& world, const at::Tensor& local, const RedistributePlan& plan, comm::Label label);
at::Tensor redistribute(comm::World& world, const at::Tensor& local, const LayoutChange& change, comm::Label label);

// Verifies that all ranks of both meshes are about to make the same change, and names those that are not. For plans made at run time.
void check_same_plan(comm::World& world, const RedistributePlan& plan);

}  // namespace cairn::mesh
