// Distributed tensors (PyTorch: DTensor, OneFlow: global tensors): code that is written for one process runs on tensors that several ranks
// hold together.
//
// A DTensor is an at::Tensor with the shape of the whole. Each rank of an axis holds its part: a shard (Split), all of it (Replicate), or a
// term of a sum (Partial). Every ATen operation on one is taken apart below autograd: a rule (dtensor/index_rules.h, dtensor/view_rules.h)
// says which placements of its inputs it can compute with locally, the cheapest in bytes is chosen, `redistribute` brings the inputs there,
// and the result is a DTensor again. An operation without a rule gathers its inputs and runs whole on every rank. So placements change what
// is sent, never the result, and autograd works as on plain tensors, for gradients of any order.
//
// Every rank must run the same operations in the same order. A plain tensor among the operands counts as replicated.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "mesh/redistribute_plan.h"

namespace c10 {
struct IValue;
}
namespace cairn::comm {
class World;
}

namespace cairn::mesh {

// Sees every operation on the DTensors of an axis: its name ("mm", "sum.dim_IntList"), its arguments, its first result.
class DTensorObserver {
 public:
  virtual ~DTensorObserver() = default;
  virtual void saw(const std::string& operation, const std::vector<c10::IValue>& arguments, const at::Tensor& result) = 0;
};

// The ranks along one mesh axis that hold DTensors together. Borrows the world, which must outlive all of its tensors.
class DTensorAxis {
 public:
  DTensorAxis(comm::World& world, std::string axis, std::vector<int> ranks);

  int size() const { return static_cast<int>(mesh_.ranks.size()); }
  int rank() const { return rank_; }  // this rank's coordinate along the axis
  const std::string& name() const { return mesh_.axes.front().name; }

  // This rank's part under another placement. `what` names the tensor in the ledger.
  at::Tensor redistribute(const at::Tensor& local, const Placement::How& from, const Placement::How& to, const std::vector<int64_t>& shape,
                          const std::string& what);

  void observe(DTensorObserver* observer) { observer_ = observer; }  // borrowed; null: nobody observes
  DTensorObserver* observer() const { return observer_; }

 private:
  comm::World& world_;
  Mesh mesh_;
  int rank_ = 0;
  RedistributePlanCache plans_;
  DTensorObserver* observer_ = nullptr;
};

// The intervals of a split written out and merged where they touch, so that equal splits compare equal.
Split canonical(Split split, int64_t size, int ranks);
// The even split of a dim, in that form.
Split even_split(int64_t dim, int64_t size, int ranks);

// A DTensor of this shape, of which this rank holds `local`. No communication. A leaf of autograd, if it is made one.
at::Tensor dtensor_from_local(std::shared_ptr<DTensorAxis> axis, const at::Tensor& local, const Placement::How& how,
                              std::vector<int64_t> shape);
bool is_dtensor(const at::Tensor& tensor);
const Placement::How& dtensor_placement(const at::Tensor& dtensor);

// This rank's part of a DTensor under a placement, as a plain tensor without gradients. A plain tensor counts as replicated along `axis`.
at::Tensor to_local(const std::shared_ptr<DTensorAxis>& axis, const at::Tensor& tensor, const Placement::How& how, const std::string& what);
// The whole tensor; plain tensors are returned as they are. Without gradients.
at::Tensor full_tensor(const at::Tensor& tensor);

}  // namespace cairn::mesh
