// Runs one step of a redistribution on one rank: pack the boxes to send into a flat buffer, call the collective, unpack the received boxes.
#include "mesh/redistribute/exchange_step.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ops/maximum.h>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

bool has(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

bool comm_knows(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kInt:
    case at::kLong:
    case at::kByte:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

// The dtype in which terms are sent and reduced: their own where comm can reduce it, else the next wider one.
at::ScalarType reduced_as(at::ScalarType dtype) {
  if (comm_knows(dtype) && dtype != at::kBool) return dtype;
  if (c10::isComplexType(dtype)) base::fail_input("partial values of {} cannot be reduced", c10::toString(dtype));
  return c10::isFloatingType(dtype) ? at::kFloat : at::kInt;
}

// One step as one rank sees it.
class Exchange {
 public:
  Exchange(comm::Group& group, const ExchangeStep& step, Partial::Reduce reduce, const ExchangeMemory& memory, comm::Label label)
      : group_(group),
        step_(step),
        reduce_(reduce),
        memory_(memory),
        label_(label),
        me_(group.ranks()[static_cast<size_t>(group.rank())]),
        dtype_(c10::typeMetaToScalarType(memory.options.dtype())) {
    for (const BoxTransfer& transfer : step.transfers)
      if (transfer.to == me_) mine_.push_back(&transfer);
  }

  comm::Work start() {
    switch (step_.by) {
      case CollectiveKind::copy:
        return copy();
      case CollectiveKind::all_gather:
        return all_gather();
      case CollectiveKind::reduce_scatter:
        return reduce_scatter();
      case CollectiveKind::all_reduce:
        return all_reduce();
      case CollectiveKind::all_to_all:
        return std::all_of(step_.transfers.begin(), step_.transfers.end(),
                           [](const BoxTransfer& transfer) { return transfer.from.size() == 1; })
                   ? move_pairwise()
                   : reduce_pairwise();
    }
    return {};
  }

 private:
  using Counts = std::vector<int64_t>;

  comm::Work copy() const {
    for (const BoxTransfer* transfer : mine_) memory_.to.view(transfer->box).copy_(memory_.from.view(transfer->box));
    return {};
  }

  comm::Work all_gather() const {
    std::vector<at::Tensor> own, places;
    Counts counts(group_.ranks().size(), 0);
    for (const BoxTransfer* transfer : mine_)
      if (transfer->from.front() == me_) own.push_back(memory_.from.view(transfer->box));
    for (size_t i = 0; i < counts.size(); ++i)
      for (const BoxTransfer* transfer : mine_)
        if (transfer->from.front() == group_.ranks()[i]) {
          places.push_back(memory_.to.view(transfer->box));
          counts[i] += transfer->box.elements();
        }
    const at::Tensor in = joined(own, memory_.options);
    const StagingBuffer out(std::move(places), memory_.options);
    return group_.all_gather(raw(out.flat()), raw(in), label_, raw(std::move(counts))).then([out] { out.unpack(); });
  }

  comm::Work reduce_scatter() const {
    std::vector<at::Tensor> parts, places;
    Counts counts;
    for (int rank : group_.ranks()) {
      counts.push_back(0);
      for (const BoxTransfer& transfer : step_.transfers)
        if (transfer.to == rank) {
          parts.push_back(memory_.from.view(transfer.box));
          counts.back() += transfer.box.elements();
        }
    }
    for (const BoxTransfer* transfer : mine_) places.push_back(memory_.to.view(transfer->box));
    const at::TensorOptions wide = memory_.options.dtype(reduced_as(dtype_));
    const at::Tensor in = joined(parts, wide);
    const StagingBuffer out(std::move(places), wide);
    return group_.reduce_scatter(out.flat(), in, reduction(), label_, std::move(counts)).then([out] { out.unpack(); });
  }

  comm::Work all_reduce() const {
    std::vector<at::Tensor> places;
    for (const BoxTransfer* transfer : mine_) {
      places.push_back(memory_.to.view(transfer->box));
      places.back().copy_(memory_.from.view(transfer->box));
    }
    const StagingBuffer both(std::move(places), memory_.options.dtype(reduced_as(dtype_)));
    both.pack();
    return group_.all_reduce(both.flat(), reduction(), label_).then([both] { both.unpack(); });
  }

  comm::Work move_pairwise() const {
    Counts in_counts, out_counts;
    const at::Tensor in = outgoing(memory_.options, in_counts);
    std::vector<at::Tensor> places;
    for (int rank : group_.ranks()) {
      out_counts.push_back(0);
      for (const BoxTransfer* transfer : mine_) {
        if (transfer->from.front() != rank) continue;
        const at::Tensor place = memory_.to.view(transfer->box);
        if (rank == me_) {
          place.copy_(memory_.from.view(transfer->box));
          continue;
        }
        places.push_back(place);
        out_counts.back() += transfer->box.elements();
      }
    }
    const StagingBuffer out(std::move(places), memory_.options);
    return group_.all_to_all(raw(out.flat()), raw(in), label_, raw(std::move(out_counts)), raw(std::move(in_counts))).then([out] {
      out.unpack();
    });
  }

  // The terms arrive unreduced and are reduced here, in the order of BoxTransfer::from.
  comm::Work reduce_pairwise() const {
    const at::TensorOptions wide = memory_.options.dtype(reduced_as(dtype_));
    Counts in_counts, out_counts;
    const at::Tensor in = outgoing(wide, in_counts);
    struct Reduction {
      at::Tensor place;
      std::vector<at::Tensor> terms;
    };
    auto reductions = std::make_shared<std::vector<Reduction>>();
    for (const BoxTransfer* transfer : mine_)
      reductions->push_back({memory_.to.view(transfer->box), std::vector<at::Tensor>(transfer->from.size())});
    for (int rank : group_.ranks()) {
      out_counts.push_back(0);
      if (rank == me_) continue;
      for (const BoxTransfer* transfer : mine_)
        if (has(transfer->from, rank)) out_counts.back() += transfer->box.elements();
    }
    int64_t elements = 0, at = 0;
    for (int64_t count : out_counts) elements += count;
    const at::Tensor out = at::empty({elements}, wide);
    for (int rank : group_.ranks())
      for (size_t i = 0; i < mine_.size(); ++i) {
        const BoxTransfer& transfer = *mine_[i];
        const auto term = std::find(transfer.from.begin(), transfer.from.end(), rank);
        if (term == transfer.from.end()) continue;
        Reduction& reduction = (*reductions)[i];
        at::Tensor& value = reduction.terms[static_cast<size_t>(term - transfer.from.begin())];
        if (rank == me_) {
          value = memory_.from.view(transfer.box).to(wide.dtype());
        } else {
          value = out.narrow(0, at, transfer.box.elements()).view(reduction.place.sizes());
          at += transfer.box.elements();
        }
      }
    const bool sums = reduce_ == Partial::Reduce::sum;
    return group_.all_to_all(out, in, label_, std::move(out_counts), std::move(in_counts)).then([reductions, sums] {
      for (const Reduction& one : *reductions) {
        const bool half = one.terms.front().scalar_type() == at::kBFloat16 || one.terms.front().scalar_type() == at::kHalf;
        at::Tensor value = one.terms.front().to(half ? at::kFloat : one.terms.front().scalar_type(), /*non_blocking=*/false, /*copy=*/true);
        for (size_t i = 1; i < one.terms.size(); ++i)
          value = sums ? value.add_(one.terms[i]) : at::maximum(value, one.terms[i].to(value.scalar_type()));
        one.place.copy_(value);
      }
    });
  }

  // The elements that this rank sends to the others, in the order of the group; none to itself.
  at::Tensor outgoing(const at::TensorOptions& options, Counts& counts) const {
    std::vector<at::Tensor> parts;
    for (int rank : group_.ranks()) {
      counts.push_back(0);
      if (rank == me_) continue;
      for (const BoxTransfer& transfer : step_.transfers) {
        if (transfer.to != rank || !has(transfer.from, me_)) continue;
        parts.push_back(memory_.from.view(transfer.box));
        counts.back() += transfer.box.elements();
      }
    }
    return joined(parts, options);
  }

  comm::Reduce reduction() const { return reduce_ == Partial::Reduce::sum ? comm::Reduce::sum : comm::Reduce::max; }

  // A dtype that comm does not know is sent as bytes.
  at::Tensor raw(const at::Tensor& flat) const { return comm_knows(dtype_) ? flat : flat.view(at::kByte); }
  Counts raw(Counts counts) const {
    if (!comm_knows(dtype_))
      for (int64_t& count : counts) count *= static_cast<int64_t>(c10::elementSize(dtype_));
    return counts;
  }

  comm::Group& group_;
  const ExchangeStep& step_;
  Partial::Reduce reduce_;
  const ExchangeMemory& memory_;
  comm::Label label_;
  int me_;
  at::ScalarType dtype_;
  std::vector<const BoxTransfer*> mine_;
};

}  // namespace

comm::Work start_step(comm::World& world, const ExchangeStep& step, Partial::Reduce reduce, const ExchangeMemory& memory, comm::Label label,
                      std::string_view name) {
  comm::Group& group = step.by == CollectiveKind::copy ? world.alone() : world.group(step.ranks, name);
  return Exchange(group, step, reduce, memory, label).start();
}

}  // namespace cairn::mesh
