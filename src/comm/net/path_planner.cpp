// Path planning for few, large, long-lived flows (C4P). Greedy, heaviest flow first: each channel goes to the candidate path that keeps the
// busiest link least utilised,
//   argmin over paths p of  max over links l in p of  (load_l + bytes) / capacity_l,
// then to the one where the sum over its links is least, then to the one with fewest channels, then to the first. So channels of one flow
// spread over different spines or planes.
#include "comm/net/path_planner.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace cairn::comm {

int PathPlanner::add_link(double bytes_per_s) {
  CAIRN_CHECK(bytes_per_s >= 0, "a link of {} bytes/s", bytes_per_s);
  links_.push_back({.capacity = bytes_per_s});
  return static_cast<int>(links_.size()) - 1;
}

void PathPlanner::set_capacity(int link, double bytes_per_s) {
  CAIRN_CHECK(bytes_per_s >= 0, "a link of {} bytes/s", bytes_per_s);
  links_.at(static_cast<size_t>(link)).capacity = bytes_per_s;
}

int PathPlanner::add_flow(double bytes, std::vector<Path> candidates, int channels) {
  CAIRN_CHECK(bytes >= 0 && channels >= 1 && !candidates.empty(), "a flow of {} bytes, {} channels, {} paths", bytes, channels,
              candidates.size());
  for (const Path& path : candidates)
    for (const int link : path) CAIRN_CHECK(link >= 0 && link < static_cast<int>(links_.size()), "link {} of {}", link, links_.size());
  flows_[next_flow_] = {bytes, std::move(candidates), std::vector<int>(static_cast<size_t>(channels), -1)};
  return next_flow_++;
}

void PathPlanner::remove_flow(int flow) {
  const auto found = flows_.find(flow);
  CAIRN_CHECK(found != flows_.end(), "no flow {}", flow);
  for (const int path : found->second.chosen) book(found->second, path, -1);
  flows_.erase(found);
}

void PathPlanner::set_bytes(int flow, double bytes) {
  Flow& one = flows_.at(flow);
  for (const int path : one.chosen) book(one, path, -1);
  one.bytes = bytes;
  for (const int path : one.chosen) book(one, path, 1);
}

int PathPlanner::plan(Nanoseconds now) {
  const int placed = place_missing();
  if (now - planned_at_ < options_.interval) return placed;
  PathPlanner anew = *this;
  const int moved = anew.plan_anew();
  if (moved == 0 || anew.highest_utilisation() > (1 - options_.hysteresis) * highest_utilisation()) return placed;
  links_ = std::move(anew.links_);
  flows_ = std::move(anew.flows_);
  planned_at_ = now;
  return placed + moved;
}

double PathPlanner::highest_utilisation() const {
  double highest = 0;
  for (const Link& link : links_)
    if (link.capacity > 0) highest = std::max(highest, link.load / link.capacity);
  return highest;
}

bool PathPlanner::works(const Path& path) const {
  return std::all_of(path.begin(), path.end(), [&](int link) { return links_[static_cast<size_t>(link)].capacity > 0; });
}

void PathPlanner::book(const Flow& flow, int path, int sign) {
  if (path < 0) return;
  for (const int at : flow.candidates[static_cast<size_t>(path)]) {
    Link& link = links_[static_cast<size_t>(at)];
    link.channels += sign;
    link.load = link.channels == 0 ? 0 : link.load + sign * flow.share();
  }
}

int PathPlanner::place(Flow& flow, size_t channel) {
  std::tuple<double, double, int> least;
  int best = -1;
  for (size_t i = 0; i < flow.candidates.size(); ++i) {
    if (!works(flow.candidates[i])) continue;
    std::tuple<double, double, int> cost{};
    for (const int at : flow.candidates[i]) {
      const Link& link = links_[static_cast<size_t>(at)];
      const double utilisation = (link.load + flow.share()) / link.capacity;
      std::get<0>(cost) = std::max(std::get<0>(cost), utilisation);
      std::get<1>(cost) += utilisation;
      std::get<2>(cost) += link.channels;
    }
    if (best >= 0 && cost >= least) continue;
    least = cost;
    best = static_cast<int>(i);
  }
  flow.chosen[channel] = best;
  book(flow, best, 1);
  return best;
}

// The bytes of a channel, not of a flow, are what has to fit.
std::vector<int> PathPlanner::heaviest_first() const {
  std::vector<int> order;
  for (const auto& [id, _] : flows_) order.push_back(id);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return flows_.at(a).share() > flows_.at(b).share(); });
  return order;
}

int PathPlanner::place_missing() {
  int placed = 0;
  for (auto& [_, flow] : flows_) {
    for (int& path : flow.chosen) {
      if (path < 0 || works(flow.candidates[static_cast<size_t>(path)])) continue;
      book(flow, path, -1);
      path = -1;
    }
  }
  for (const int id : heaviest_first()) {
    Flow& flow = flows_.at(id);
    for (size_t channel = 0; channel < flow.chosen.size(); ++channel)
      if (flow.chosen[channel] < 0) placed += place(flow, channel) >= 0;
  }
  return placed;
}

int PathPlanner::plan_anew() {
  std::map<int, std::vector<int>> before;
  for (auto& [id, flow] : flows_) {
    before[id] = flow.chosen;
    for (int& path : flow.chosen) book(flow, std::exchange(path, -1), -1);
  }
  place_missing();
  int moved = 0;
  for (const auto& [id, flow] : flows_)
    for (size_t channel = 0; channel < flow.chosen.size(); ++channel) moved += flow.chosen[channel] != before[id][channel];
  return moved;
}

RateSplit::RateSplit(int channels, const Options& options)
    : options_(options),
      rates_(static_cast<size_t>(channels)),
      shares_(static_cast<size_t>(channels), 1.0 / channels),
      lost_(static_cast<size_t>(channels)) {}

std::vector<double> RateSplit::proportional() const {
  double known = 0, sum = 0;
  int measured = 0;
  for (size_t i = 0; i < rates_.size(); ++i) {
    if (lost_[i] || rates_[i] <= 0) continue;
    known += rates_[i];
    ++measured;
  }
  std::vector<double> shares(rates_.size());
  for (size_t i = 0; i < rates_.size(); ++i) {
    if (!lost_[i]) shares[i] = rates_[i] > 0 ? rates_[i] : measured > 0 ? known / measured : 1;  // unmeasured: as the others
    sum += shares[i];
  }
  double total = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!lost_[i]) shares[i] = std::max(shares[i] / sum, options_.least_share);
    total += shares[i];
  }
  for (double& share : shares) share = total > 0 ? share / total : 0;
  return shares;
}

void RateSplit::measured(int channel, double bytes_per_s) {
  const auto at = static_cast<size_t>(channel);
  if (lost_[at] || !(bytes_per_s > 0)) return;
  rates_[at] = rates_[at] > 0 ? rates_[at] + options_.smoothing * (bytes_per_s - rates_[at]) : bytes_per_s;
  const std::vector<double> wanted = proportional();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::abs(wanted[i] - shares_[i]) <= options_.hysteresis * shares_[i]) continue;
    shares_ = wanted;
    return;
  }
}

void RateSplit::lose(int channel) {
  lost_[static_cast<size_t>(channel)] = true;
  shares_ = proportional();
}

}  // namespace cairn::comm
