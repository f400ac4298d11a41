#pragma once
#include <ATen/core/Tensor.h>

#include "comm/label.h"
#include "comm/work.h"
#include "mesh/redistribute_plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::mesh {

// A change of placement under way. `tensor` may be read when `ready` is done; it may be the input's own memory where nothing changes here.
struct Redistributed {
  at::Tensor tensor;
  comm::Work ready;
};

// Changes how a tensor lies: this rank hands in what it holds before and gets what it holds afterwards. The only way in which a tensor
// changes placement. Moves are exact to the bit; sums and maxima run in the order of the coordinates, alike on every rank and whatever the
// collective (bf16 and fp16 are summed in float and rounded once). Every rank of both meshes calls it, with the same change.
//
// A rank that is not in `from` hands in an empty tensor of the dtype and device; one that is not in `to` gets an empty one. Any dtype can
// be moved. The bytes are booked under the label's purpose. No gradient is recorded: `backward_of` names the change that takes it back.
//
// Until `ready` is done, do not write to `local`. Ranks wait for several changes in the same order, since a second round starts in the
// wait.
Redistributed start_redistribute(comm::World& world, const at::Tensor& local, const RedistributePlan& plan, comm::Label label);

// The same, done on return.
at::Tensor redistribute(comm::World& world, const at::Tensor& local, const RedistributePlan& plan, comm::Label label);
at::Tensor redistribute(comm::World& world, const at::Tensor& local, const LayoutChange& change, comm::Label label);

// Makes sure that all ranks of both meshes are about to do the same change, and names those that are not. For plans decided at run time.
void check_same_plan(comm::World& world, const RedistributePlan& plan);

}  // namespace cairn::mesh
