#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "study/supernet/supernet_run.h"
#include "train/evaluate.h"
#include "train/job.h"
#include "train/supernet/calibrate.h"

namespace cairn::study {
namespace {

// Networks of one search: measured once each, and bred by counter-based random numbers.
class SubnetPopulation {
 public:
  SubnetPopulation(train::Job& job, const SearchOptions& options)
      : job_(job),
        options_(options),
        space_(train::subnet_space(job)),
        random_(base::Random(options.seed).for_purpose("supernet.search")) {}

  bool fits(const model::Subnet& subnet) const { return options_.flops_max <= 0 || flops_of(subnet, space_.shape) <= options_.flops_max; }

  const MeasuredSubnet& measure(const model::Subnet& subnet) {
    const std::string name = format_subnet(subnet, space_.shape);
    if (const auto found = measured_.find(name); found != measured_.end()) return found->second;
    const train::ScopedSubnet scoped(job_, subnet, options_.calibration_samples);
    const train::HeldOut held = train::evaluate_held_out(job_);
    MeasuredSubnet one{
        .subnet = subnet, .flops = flops_of(subnet, space_.shape), .loss = held.loss, .accuracy = std::numeric_limits<double>::quiet_NaN()};
    const std::vector<std::string> names = job_.engine.objective->measures();
    for (size_t i = 0; i < names.size() && i < held.measures.size(); ++i)
      if (names[i] == "accuracy") one.accuracy = held.measures[i];
    return measured_.emplace(name, one).first->second;
  }

  // A network within the bound, drawn, or made smaller until it fits.
  model::Subnet draw() { return shrunk(space_.draw(next())); }

  model::Subnet mutated(const model::Subnet& parent) {
    const model::Subnet other = space_.draw(next());
    return mixed(parent, other, options_.mutation);
  }

  model::Subnet crossed(const model::Subnet& one, const model::Subnet& other) { return mixed(one, other, 0.5); }

  uint64_t pick(uint64_t count) { return next().below(0, count); }

  std::vector<MeasuredSubnet> all() const {
    std::vector<MeasuredSubnet> list;
    for (const auto& [name, one] : measured_) list.push_back(one);
    std::ranges::stable_sort(list, {}, [&](const MeasuredSubnet& one) { return std::pair(!fits(one.subnet), one.loss); });
    return list;
  }

  const train::SubnetSpace& space() const { return space_; }

 private:
  base::Random next() { return random_.for_index(drawn_++); }

  // Each choice of `one`, or with this probability that of `other`.
  model::Subnet mixed(const model::Subnet& one, const model::Subnet& other, double share) {
    const base::Random random = next();
    model::Subnet child = one;
    uint64_t index = 0;
    for (size_t i = 0; i < child.depth.size(); ++i)
      if (random.uniform(index++) < share) child.depth[i] = other.depth[i];
    const bool all = random.uniform(index++) < share;  // of models with one width
    for (size_t i = 0; i < child.width.size(); ++i)
      if (space_.shape.one_width ? all : random.uniform(index++) < share) child.width[i] = other.width[i];
    return shrunk(child);
  }

  // Takes the next smaller choice somewhere, again and again, until the network fits.
  model::Subnet shrunk(model::Subnet subnet) {
    const base::Random random = next();
    for (uint64_t index = 0; !fits(subnet) && subnet != space_.smallest(); ++index) {
      const uint64_t places = subnet.depth.size() + (space_.shape.one_width ? 1 : subnet.width.size());
      const uint64_t place = random.below(index, places);
      if (place < subnet.depth.size()) {
        if (!space_.choices.depth.empty()) subnet.depth[place] = smaller(space_.choices.depth, subnet.depth[place]);
      } else if (space_.shape.one_width) {
        subnet.width.assign(subnet.width.size(), smaller(space_.choices.widths.front(), subnet.width.front()));
      } else {
        int64_t& width = subnet.width[place - subnet.depth.size()];
        width = smaller(space_.choices.widths[place - subnet.depth.size()], width);
      }
    }
    return subnet;
  }

  static int64_t smaller(const std::vector<int64_t>& choices, int64_t value) {
    const auto found = std::ranges::lower_bound(choices, value);
    return found == choices.begin() ? value : *(found - 1);
  }

  train::Job& job_;
  SearchOptions options_;
  train::SubnetSpace space_;
  base::Random random_;
  uint64_t drawn_ = 0;
  std::map<std::string, MeasuredSubnet> measured_;
};

}  // namespace

std::vector<MeasuredSubnet> search_subnets(train::Job& job, const SearchOptions& options, base::Log& log) {
  SubnetPopulation population(job, options);
  const model::Subnet smallest = population.space().smallest();
  if (!population.fits(smallest))
    base::fail_input("--flops {}: the smallest network takes {}. Allow at least that.", base::human_count(options.flops_max),
                     base::human_count(flops_of(smallest, population.space().shape)));
  std::vector<model::Subnet> generation{smallest};
  if (population.fits(population.space().whole())) generation.push_back(population.space().whole());
  while (std::ssize(generation) < options.population) generation.push_back(population.draw());
  for (int64_t number = 1; number <= options.generations; ++number) {
    std::vector<MeasuredSubnet> ranked;
    for (const model::Subnet& one : generation) ranked.push_back(population.measure(one));
    std::ranges::stable_sort(ranked, {}, &MeasuredSubnet::loss);
    log.info("generation {} of {}: best loss {:.4f}, {} FLOPs, {}", number, options.generations, ranked.front().loss,
             base::human_count(ranked.front().flops), format_subnet(ranked.front().subnet, population.space().shape));
    const auto parents =
        std::clamp<size_t>(static_cast<size_t>(std::ceil(options.parents * static_cast<double>(ranked.size()))), 1, ranked.size());
    generation.clear();
    for (size_t i = 0; i < parents; ++i) generation.push_back(ranked[i].subnet);
    while (std::ssize(generation) < options.population) {
      const model::Subnet& one = ranked[population.pick(parents)].subnet;
      const bool crosses = std::ssize(generation) % 2 == 0;
      generation.push_back(crosses ? population.crossed(one, ranked[population.pick(parents)].subnet) : population.mutated(one));
    }
  }
  return population.all();
}

std::vector<MeasuredSubnet> pareto_front(std::vector<MeasuredSubnet> measured) {
  std::ranges::stable_sort(measured, {}, [](const MeasuredSubnet& one) { return std::pair(one.flops, one.loss); });
  std::vector<MeasuredSubnet> front;
  for (MeasuredSubnet& one : measured)
    if (front.empty() || one.loss < front.back().loss) front.push_back(std::move(one));
  return front;
}

std::string to_table(const std::vector<MeasuredSubnet>& measured, const model::ElasticShape& shape) {
  std::string text = fmt::format("{:>12}  {:>8}  {:>8}  {}\n", "FLOPs", "loss", "accuracy", "subnet");
  for (const MeasuredSubnet& one : measured)
    text += fmt::format("{:>12}  {:>8.4f}  {:>8}  {}\n", base::human_count(one.flops), one.loss,
                        std::isnan(one.accuracy) ? "" : fmt::format("{:.4f}", one.accuracy), format_subnet(one.subnet, shape));
  return text;
}

std::string to_json(const std::vector<MeasuredSubnet>& measured, const model::ElasticShape& shape) {
  base::OrderedJson list = base::OrderedJson::array();
  for (const MeasuredSubnet& one : measured) {
    base::OrderedJson json{{"subnet", format_subnet(one.subnet, shape)}, {"flops", one.flops}, {"loss", one.loss}};
    if (!std::isnan(one.accuracy)) json["accuracy"] = one.accuracy;
    list.push_back(std::move(json));
  }
  return base::compact(base::OrderedJson{{"subnets", list}});
}

}  // namespace cairn::study
