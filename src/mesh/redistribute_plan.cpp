#include "mesh/redistribute_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "mesh/redistribute/choose_collective.h"
#include "mesh/redistribute/demand.h"
#include "mesh/redistribute/supply.h"

namespace cairn::mesh {
namespace {

std::vector<BoxTransfer> direct_transfers(const LayoutChange& change) {
  const Demand demand(change);
  const Supply supply(change);
  std::vector<BoxTransfer> transfers;
  int index = 0;
  for (int rank : change.to.mesh.members()) {
    for (const Box& box : demand.of(rank))
      for (BoxTransfer& transfer : supply.transfers(rank, index, box)) transfers.push_back(std::move(transfer));
    ++index;
  }
  return transfers;
}

Partial::Reduce reduction_of(const Placement& placement) {
  for (const Placement::OnAxis& on : placement.axes)
    if (const Partial* partial = std::get_if<Partial>(&on.how)) return partial->reduce;
  return Partial::Reduce::sum;
}

void add_traffic(const ExchangeStep& step, std::map<std::pair<int, int>, int64_t>& traffic) {
  if (step.by != CollectiveKind::all_reduce) {
    for (const BoxTransfer& transfer : step.transfers)
      for (int from : transfer.from)
        if (from != transfer.to) traffic[{from, transfer.to}] += transfer.box.elements();
    return;
  }
  int64_t elements = 0;
  for (const BoxTransfer& transfer : step.transfers) elements += transfer.to == step.ranks.front() ? transfer.box.elements() : 0;
  const auto n = static_cast<int64_t>(step.ranks.size());
  for (int64_t a = 0; a < n; ++a)
    for (int64_t b = 0; b < n; ++b)
      if (a != b)
        traffic[{step.ranks[static_cast<size_t>(a)], step.ranks[static_cast<size_t>(b)]}] +=
            even_part(elements, n, a).length() + even_part(elements, n, b).length();  // a's reduced share, and a's term of b's share
}

LocalShard held(const Layout& layout, int rank, const std::vector<int64_t>& shape) {
  if (layout.mesh.contains(rank)) return local_shard(layout.placement, layout.mesh.axis_coordinates(rank), shape);
  return {{{}}};  // one dim, nothing along it
}

}  // namespace

std::string_view name(CollectiveKind collective) {
  switch (collective) {
    case CollectiveKind::copy:
      return "copy";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::all_to_all:
      return "all_to_all";
  }
  return "";
}

RedistributePlan::RedistributePlan(LayoutChange change) : change_(std::move(change)) {
  check(change_);
  reduce_ = reduction_of(change_.from.placement);
  std::vector<ExchangeStep> first, second;
  for (std::vector<BoxTransfer>& set : independent_groups(direct_transfers(change_))) {
    ExchangeStep direct = choose_collective(set);
    TwoRounds rounds = direct.by == CollectiveKind::all_reduce ? TwoRounds{} : in_two_rounds(set);
    if (rounds.first.empty()) {
      first.push_back(std::move(direct));
      continue;
    }
    for (std::vector<BoxTransfer>& part : independent_groups(std::move(rounds.first))) first.push_back(choose_collective(std::move(part)));
    for (std::vector<BoxTransfer>& part : independent_groups(std::move(rounds.second)))
      second.push_back(choose_collective(std::move(part)));
  }
  rounds_.push_back(std::move(first));
  if (!second.empty()) rounds_.push_back(std::move(second));
  for (const std::vector<ExchangeStep>& steps : rounds_) {
    std::map<int, size_t>& index = step_index_.emplace_back();
    for (size_t i = 0; i < steps.size(); ++i)
      for (int rank : steps[i].ranks) index[rank] = i;
  }
}

const ExchangeStep* RedistributePlan::step_of(size_t round, int rank) const {
  if (round >= rounds_.size()) return nullptr;
  const auto found = step_index_[round].find(rank);
  return found == step_index_[round].end() ? nullptr : &rounds_[round][found->second];
}

LocalShard RedistributePlan::held_before(int rank) const { return held(change_.from, rank, change_.shape); }
LocalShard RedistributePlan::held_after(int rank) const { return held(change_.to, rank, change_.shape); }

int64_t RedistributePlan::elements_given(int rank) const {
  for (size_t round = rounds_.size(); round-- > 0;)
    if (const ExchangeStep* step = step_of(round, rank)) {
      int64_t given = 0;
      for (const BoxTransfer& transfer : step->transfers) given += transfer.to == rank ? transfer.box.elements() : 0;
      return given;
    }
  return 0;
}

bool RedistributePlan::keeps(int rank) const {
  const ExchangeStep* step = step_of(0, rank);
  if (!step || step->by != CollectiveKind::copy || step_of(1, rank)) return false;
  const LocalShard after = held_after(rank);
  int64_t elements = 1;
  for (int64_t size : after.local_shape()) elements *= size;
  return held_before(rank) == after && elements_given(rank) == elements;
}

std::map<std::pair<int, int>, int64_t> RedistributePlan::traffic() const {
  std::map<std::pair<int, int>, int64_t> result;
  for (const std::vector<ExchangeStep>& steps : rounds_)
    for (const ExchangeStep& step : steps) add_traffic(step, result);
  std::erase_if(result, [](const auto& entry) { return entry.second == 0; });
  return result;
}

RedistributeCost RedistributePlan::cost() const {
  RedistributeCost cost;
  std::map<int, int64_t> sent, received;
  for (const auto& [pair, elements] : traffic()) {
    cost.elements += elements;
    cost.elements_sent_max = std::max(cost.elements_sent_max, sent[pair.first] += elements);
    cost.elements_received_max = std::max(cost.elements_received_max, received[pair.second] += elements);
  }
  for (const std::vector<ExchangeStep>& steps : rounds_)
    cost.rounds +=
        std::any_of(steps.begin(), steps.end(), [](const ExchangeStep& step) { return step.by != CollectiveKind::copy; }) ? 1 : 0;
  return cost;
}

std::string RedistributePlan::describe() const {
  std::string text;
  for (size_t round = 0; round < rounds_.size(); ++round) {
    std::map<std::string, int> lines;
    for (const ExchangeStep& step : rounds_[round]) {
      std::map<std::pair<int, int>, int64_t> traffic;
      add_traffic(step, traffic);
      int64_t elements = 0;
      for (const auto& [pair, sent] : traffic) elements += sent;
      if (step.by == CollectiveKind::copy) continue;
      ++lines[fmt::format("{} of {} ranks, {} elements sent", name(step.by), step.ranks.size(), elements)];
    }
    for (const auto& [line, times] : lines)
      text += fmt::format("{}{}{}", text.empty() ? "" : round ? ", then " : " and ", times > 1 ? fmt::format("{} x ", times) : "", line);
  }
  return text.empty() ? "nothing is sent" : text;
}

std::shared_ptr<const RedistributePlan> RedistributePlanCache::get(const LayoutChange& change) {
  std::string key = to_string(change);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  auto plan = std::make_shared<const RedistributePlan>(change);
  if (by_age_.size() >= plans_max_) {
    plans_.erase(by_age_.front());
    by_age_.pop_front();
  }
  by_age_.push_back(key);
  plans_.emplace(std::move(key), plan);
  return plan;
}

}  // namespace cairn::mesh
