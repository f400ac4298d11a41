#include "mesh/redistribute.h"

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/redistribute/exchange_step.h"

namespace cairn::mesh {
namespace {

// The second round starts when a rank waits, so its groups need an order of operations of their own.
std::string second_round(std::string_view name) { return fmt::format("redistribute, second round{}{}", name.empty() ? "" : " of ", name); }

void check_local(const at::Tensor& local, const LocalShard& held, const RedistributePlan& plan, int rank) {
  if (!local.defined())
    base::fail_input("{}: rank {} hands in no tensor; where it holds nothing, an empty one says the dtype", to_string(plan.change()), rank);
  const std::vector<int64_t> shape = held.local_shape();
  if (!plan.change().from.mesh.contains(rank) ? local.numel() == 0 : local.sizes().vec() == shape) return;
  base::fail_input("{}: rank {} hands in a tensor of shape [{}], it should hold [{}]", to_string(plan.change()), rank,
                   fmt::join(local.sizes().vec(), ", "), fmt::join(shape, ", "));
}

// The neutral element of a reduction, for coordinates of a partial axis without a term.
at::Scalar identity(Partial::Reduce reduce, at::ScalarType dtype) {
  if (reduce == Partial::Reduce::sum || dtype == at::kBool || dtype == at::kByte) return 0;
  if (c10::isFloatingType(dtype)) return -std::numeric_limits<double>::infinity();
  switch (dtype) {
    case at::kChar:
      return std::numeric_limits<int8_t>::lowest();
    case at::kShort:
      return std::numeric_limits<int16_t>::lowest();
    case at::kInt:
      return std::numeric_limits<int32_t>::lowest();
    default:
      return std::numeric_limits<int64_t>::lowest();
  }
}

Partial::Reduce reduction_after(const RedistributePlan& plan) {
  for (const Placement::OnAxis& on : plan.change().to.placement.axes)
    if (const Partial* partial = std::get_if<Partial>(&on.how)) return partial->reduce;
  return Partial::Reduce::sum;
}

at::Tensor make_result(const RedistributePlan& plan, const LocalShard& held, int rank, const at::TensorOptions& options) {
  const at::Tensor result = at::empty(held.local_shape(), options);
  if (plan.elements_given(rank) < result.numel()) result.fill_(identity(reduction_after(plan), result.scalar_type()));
  return result;
}

// The memory that carries this rank's boxes from the first round to the second.
BoxViews make_stage(const ExchangeStep& first, int rank, const at::TensorOptions& options) {
  std::vector<Box> boxes;
  for (const BoxTransfer& transfer : first.transfers)
    if (transfer.to == rank) boxes.push_back(transfer.box);
  return {std::move(boxes), options};
}

}  // namespace

Redistributed start_redistribute(comm::World& world, const at::Tensor& local, const RedistributePlan& plan, comm::Label label,
                                 std::string_view name) {
  const int rank = world.rank();
  const LocalShard before = plan.held_before(rank), after = plan.held_after(rank);
  check_local(local, before, plan, rank);
  if (plan.keeps(rank)) return {local.detach(), comm::Work::done()};
  const at::NoGradGuard no_gradient;
  const at::TensorOptions options = local.options();
  const at::Tensor result = make_result(plan, after, rank, options);
  const BoxViews from(before, local.detach()), to(after, result);
  const ExchangeStep *first = plan.step_of(0, rank), *second = plan.step_of(1, rank);
  if (!second) {
    if (!first) return {result, comm::Work::done()};
    return {result, start_step(world, *first, plan.reduce(), {from, to, options}, label, name)};
  }
  const BoxViews stage = first ? make_stage(*first, rank, options) : BoxViews();
  const comm::Work reduced = first ? start_step(world, *first, plan.reduce(), {from, stage, options}, label, name) : comm::Work::done();
  const auto spread = [&world, step = *second, reduce = plan.reduce(), memory = ExchangeMemory{stage, to, options}, purpose = label.purpose,
                       what = std::string(label.what), group = second_round(name)] {
    const at::NoGradGuard no_gradient_here;
    start_step(world, step, reduce, memory, {purpose, what}, group).wait();
  };
  return {result, reduced.then(spread)};
}

at::Tensor redistribute(comm::World& world, const at::Tensor& local, const RedistributePlan& plan, comm::Label label) {
  const Redistributed moving = start_redistribute(world, local, plan, label);
  moving.ready.wait();
  return moving.tensor;
}

at::Tensor redistribute(comm::World& world, const at::Tensor& local, const LayoutChange& change, comm::Label label) {
  return redistribute(world, local, RedistributePlan(change), label);
}

void check_same_plan(comm::World& world, const RedistributePlan& plan) {
  std::set<int> members;
  for (const Layout* layout : {&plan.change().from, &plan.change().to})
    for (int rank : layout->mesh.members()) members.insert(rank);
  const std::vector<int> ranks(members.begin(), members.end());
  comm::Group& group = world.group(ranks, "redistribute, check");
  const std::string text = to_string(plan.change());
  const at::Tensor own = at::full({1}, static_cast<int64_t>(base::checksum(text) >> 1), at::kLong);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, own, {comm::Purpose::control, "a change of placement"}).wait();
  std::vector<int> others;
  for (size_t i = 0; i < ranks.size(); ++i)
    if (all.data_ptr<int64_t>()[i] != own.item<int64_t>()) others.push_back(ranks[i]);
  if (!others.empty())
    throw Error(Error::Kind::broken_invariant, fmt::format("ranks {} are about to do another change of placement than rank {}: {}",
                                                           fmt::join(others, ", "), world.rank(), text));
}

}  // namespace cairn::mesh
