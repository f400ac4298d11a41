#include "parallel/experts/expert_exchange.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ops/index_select.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "mesh/row_exchange.h"
#include "model/call.h"
#include "model/saved.h"
#include "parallel/experts/row_observer.h"
#include "parallel/experts/row_plan.h"

namespace cairn::parallel {
namespace {

constexpr const char* kSavedCounts = "route.counts";  // int64 [ranks, experts + 1], on the host

at::Tensor index_of(const std::vector<int64_t>& order, const at::Device& device) {
  const at::Tensor index = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), index.mutable_data_ptr<int64_t>());
  return index.to(device);
}

mesh::RowPath path_of(ExpertDispatch dispatch) {
  switch (dispatch) {
    case ExpertDispatch::flat:
      return mesh::RowPath::flat;
    case ExpertDispatch::hierarchical:
      return mesh::RowPath::by_node;
    case ExpertDispatch::automatic:
      break;
  }
  return mesh::RowPath::by_links;
}

// What all routes of a run share.
struct RouteParts {
  comm::Group& group;
  mesh::RowExchange exchange;
  NodeOf nodes;  // of each rank of the group
};

class AllToAllRoute final : public model::ExpertRoute {
 public:
  // Starts the exchange of counts.
  AllToAllRoute(const RouteParts& parts, const model::ExpertRequest& request, mesh::Ragged experts, RowObserver* observer)
      : parts_(parts), group_(parts.group), block_(request.block), experts_(std::move(experts)), observer_(observer) {
    const std::vector<int64_t>& own = request.groups.host();
    CAIRN_CHECK(own.size() == experts_.owners.size(), "{}: counts for {} experts, and there are {}", block_, own.size(),
                experts_.owners.size());
    announced_ = at::empty({group_.size(), static_cast<int64_t>(own.size()) + 1}, at::kLong);
    const at::Tensor mine = announced_.select(0, group_.rank());
    auto* numbers = mine.mutable_data_ptr<int64_t>();
    numbers[0] = std::accumulate(own.begin(), own.end(), int64_t{0});
    std::copy(own.begin(), own.end(), numbers + 1);
    counts_gathered_ = group_.all_gather(announced_, mine, {comm::Purpose::control, block_});
  }
  // With the counts of a route that was saved.
  AllToAllRoute(const RouteParts& parts, const model::ExpertRequest& request, mesh::Ragged experts, at::Tensor announced)
      : parts_(parts), group_(parts.group), block_(request.block), experts_(std::move(experts)), announced_(std::move(announced)) {}

  const kernels::RowGroups& local_groups() override {
    plan();
    return local_;
  }

  model::ExpertRows dispatch(const at::Tensor& rows) override { return to_experts(rows); }
  model::ExpertRows combine(const at::Tensor& results) override { return to_tokens(results); }
  model::ExpertRows combine_backward(const at::Tensor& gradient) override { return to_experts(gradient); }
  model::ExpertRows dispatch_backward(const at::Tensor& gradient) override { return to_tokens(gradient); }

  void save(model::Saved& into) override {
    plan();
    into.put(kSavedCounts, announced_);
  }

 private:
  // Waits for the counts. Throws the same on all ranks where they do not add up.
  const RowPlan& plan() {
    if (local_.defined()) return plan_;
    counts_gathered_.wait_host();
    const auto* numbers = announced_.const_data_ptr<int64_t>();
    const std::vector<int64_t> announced(numbers, numbers + announced_.numel());
    try {
      plan_ = plan_rows(announced, group_.size(), group_.rank(), experts_, parts_.nodes);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", block_, error.what()));
    }
    if (observer_) observe(announced);
    local_ = kernels::RowGroups(plan_.local);
    return plan_;
  }

  // Counts add up here. More copies of experts may follow from them.
  void observe(const std::vector<int64_t>& announced) {
    const size_t experts = experts_.owners.size();
    std::vector<int64_t> rows;  // [source][expert]
    for (size_t line = 0; line < announced.size(); line += experts + 1)
      rows.insert(rows.end(), announced.begin() + static_cast<std::ptrdiff_t>(line) + 1,
                  announced.begin() + static_cast<std::ptrdiff_t>(line + experts + 1));
    if (mesh::Ragged calibrated = observer_->calibrate(block_, rows); calibrated != experts_) {
      experts_ = std::move(calibrated);
      plan_ = plan_rows(announced, group_.size(), group_.rank(), experts_, parts_.nodes);
    }
    observer_->arriving(block_, std::accumulate(plan_.local.begin(), plan_.local.end(), int64_t{0}));
  }

  at::Tensor room(const std::vector<int64_t>& counts, const at::Tensor& like) const {
    return at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0}), like.size(1)}, like.options());
  }

  comm::Work start(const at::Tensor& out, const at::Tensor& in, const comm::CountMatrix& counts) const {
    return parts_.exchange.start(out, in, counts, {comm::Purpose::activation, block_});
  }

  model::ExpertRows to_experts(const at::Tensor& rows) {
    const RowPlan& p = plan();
    check_rows(rows, p.counts.sent_by(group_.rank()));
    const at::Tensor in = p.pack.empty() ? rows.contiguous() : rows.index_select(0, index_of(p.pack, rows.device()));
    const at::Tensor arrived = room(p.counts.received_by(group_.rank()), rows);
    comm::Work work = start(arrived, in, p.counts);
    if (p.by_expert.empty()) return {.rows = arrived, .ready = work};
    const at::Tensor sorted = at::empty_like(arrived);
    return {.rows = sorted, .ready = work.then([sorted, arrived, order = p.by_expert] {
              at::Tensor into = sorted;
              at::index_select_out(into, arrived, 0, index_of(order, arrived.device()));
            })};
  }

  model::ExpertRows to_tokens(const at::Tensor& rows) {
    const RowPlan& p = plan();
    check_rows(rows, p.counts.received_by(group_.rank()));
    at::Tensor in = rows;
    if (!p.by_expert.empty())
      in = at::empty_like(rows, at::MemoryFormat::Contiguous).index_copy_(0, index_of(p.by_expert, rows.device()), rows);
    const at::Tensor arrived = room(p.counts.sent_by(group_.rank()), rows);
    comm::Work work = start(arrived, in.contiguous(), transposed(p.counts));
    if (p.pack.empty()) return {.rows = arrived, .ready = work};
    const at::Tensor unpacked = at::empty_like(arrived);
    return {.rows = unpacked, .ready = work.then([unpacked, arrived, order = p.pack] {
              unpacked.index_copy_(0, index_of(order, arrived.device()), arrived);
            })};
  }

  void check_rows(const at::Tensor& rows, const std::vector<int64_t>& counts) const {
    const int64_t expected = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    CAIRN_CHECK(rows.dim() == 2 && rows.size(0) == expected, "{}: rank {} has {} rows where the counts say {}", block_, group_.rank(),
                rows.size(0), expected);
  }

  static comm::CountMatrix transposed(const comm::CountMatrix& counts) {
    comm::CountMatrix other{counts.ranks, {}};
    for (int from = 0; from < counts.ranks; ++from)
      for (int to = 0; to < counts.ranks; ++to) other.counts.push_back(counts.at(to, from));
    return other;
  }

  const RouteParts& parts_;
  comm::Group& group_;
  const std::string block_;
  mesh::Ragged experts_;
  RowObserver* const observer_ = nullptr;
  at::Tensor announced_;
  comm::Work counts_gathered_;
  RowPlan plan_;
  kernels::RowGroups local_;  // undefined: the counts have not come yet
};

class ExpertParallel final : public model::ExpertExchange {
 public:
  ExpertParallel(comm::Group& group, const ExpertLayoutOptions& options, RowObserver* observer)
      : parts_{group, mesh::RowExchange(group, static_cast<int>(options.node_ranks), path_of(options.dispatch)),
               nodes_along(group, options)},
        observer_(observer) {}

  std::unique_ptr<model::ExpertRoute> begin(const model::ExpertRequest& request, const model::Call& call) const override {
    const mesh::Ragged* experts = placed(request, call);
    if (!experts) return model::local_experts().begin(request, call);
    RowObserver* const observer = call.into ? observer_ : nullptr;  // recomputation has no sink
    if (observer) observer->leaving(request.block, request.groups.host());
    return std::make_unique<AllToAllRoute>(parts_, request, *experts, observer);
  }

  std::unique_ptr<model::ExpertRoute> resume(const model::ExpertRequest& request, model::Saved& saved,
                                             const model::Call& call) const override {
    const mesh::Ragged* experts = placed(request, call);
    if (!experts) return model::local_experts().resume(request, saved, call);
    return std::make_unique<AllToAllRoute>(parts_, request, *experts, saved.get(kSavedCounts));
  }

 private:
  // Null: this rank holds all experts.
  static const mesh::Ragged* placed(const model::ExpertRequest& request, const model::Call& call) {
    if (!call.axes.find("ep")) return nullptr;
    for (const mesh::Placement::OnAxis& on : call.weights.placement(request.weight).axes)
      if (on.axis == "ep") return std::get_if<mesh::Ragged>(&on.how);
    return nullptr;
  }

  const RouteParts parts_;
  RowObserver* const observer_;
};

}  // namespace

std::unique_ptr<model::ExpertExchange> make_expert_exchange(comm::Group& group, const ExpertLayoutOptions& options, RowObserver* observer) {
  return std::make_unique<ExpertParallel>(group, options, observer);
}

NodeOf nodes_along(const comm::Group& group, const ExpertLayoutOptions& options) {
  NodeOf nodes;
  for (int rank = 0; rank < group.size(); ++rank) nodes.push_back(options.node_ranks > 0 ? rank / static_cast<int>(options.node_ranks) : 0);
  return nodes;
}

}  // namespace cairn::parallel
