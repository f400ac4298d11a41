#include "parallel/step_plan/step_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"

namespace cairn::parallel {
namespace {

using base::Json;

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 40;  // of a sequence, and more than any batch has places
constexpr int64_t kMaxPlanBytes = int64_t{1} << 28;

Json json_of(const StepPlan& plan, bool predictions) {
  Json units = Json::array();
  for (const StepUnit& unit : plan.units) {
    Json places = Json::array(), lengths = Json::array();
    for (const PlannedSequence& one : unit.sequences) places.push_back(one.place), lengths.push_back(one.length);
    Json text = {{"ranks", unit.ranks}, {"places", places}, {"lengths", lengths}, {"micro_batch", unit.micro_batch}};
    if (predictions) text["predicted_s"] = unit.predicted_s;
    units.push_back(std::move(text));
  }
  return {{"step", plan.step}, {"ranks", plan.ranks}, {"micro_batches", plan.micro_batches}, {"units", units}};
}

// Reads the parts of a plan, and names the one that is wrong.
struct Reader {
  const std::string& origin;

  const Json& at(const Json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) base::fail_input("{}: a step plan without \"{}\"", origin, key);
    return object[key];
  }
  int64_t whole(const Json& value, const char* key, int64_t least, int64_t most) const {
    const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{1} << 62);
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
      base::fail_input("{}: {} = {} in a step plan: must be a whole number from {} to {}", origin, key, base::shown(value), least, most);
    return value.get<int64_t>();
  }
  int64_t number(const Json& object, const char* key, int64_t least, int64_t most) const { return whole(at(object, key), key, least, most); }
  std::vector<int64_t> numbers(const Json& object, const char* key, int64_t least, int64_t most) const {
    const Json& list = at(object, key);
    if (!list.is_array()) base::fail_input("{}: {} = {} in a step plan: must be a list", origin, key, base::shown(list));
    std::vector<int64_t> all;
    for (const Json& one : list) all.push_back(whole(one, key, least, most));
    return all;
  }
};

}  // namespace

int64_t StepUnit::tokens() const {
  int64_t sum = 0;
  for (const PlannedSequence& one : sequences) sum += one.length;
  return sum;
}

void check(const StepPlan& plan, int64_t places) {
  if (plan.ranks < 1 || plan.micro_batches < 0)
    base::fail_input("step plan of step {}: {} ranks and {} micro-batches", plan.step, plan.ranks, plan.micro_batches);
  std::set<int64_t> planned;
  std::set<std::pair<int64_t, int>> busy;  // (micro-batch, rank)
  int64_t micro_batch = 0;
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const StepUnit& unit = plan.units[u];
    const auto refuse = [&](const std::string& reason) { base::fail_input("step plan of step {}, unit {}: {}", plan.step, u, reason); };
    if (unit.ranks.empty() || unit.sequences.empty()) refuse("it has no ranks or no sequences");
    if (unit.micro_batch < micro_batch || unit.micro_batch >= std::max<int64_t>(plan.micro_batches, 1))
      refuse(fmt::format("micro-batch {} of {}, after one of micro-batch {}", unit.micro_batch, plan.micro_batches, micro_batch));
    micro_batch = unit.micro_batch;
    std::set<int> own;
    for (const int rank : unit.ranks) {
      if (rank < 0 || rank >= plan.ranks) refuse(fmt::format("rank {} of {}", rank, plan.ranks));
      if (!own.insert(rank).second) refuse(fmt::format("rank {} is in it twice", rank));
      if (plan.micro_batches > 0 && !busy.emplace(micro_batch, rank).second)
        refuse(fmt::format("rank {} has another unit in micro-batch {}", rank, micro_batch));
    }
    for (const PlannedSequence& one : unit.sequences) {
      if (one.length < 1) refuse(fmt::format("the sequence at place {} has {} tokens", one.place, one.length));
      if (one.place < 0 || one.place >= places) refuse(fmt::format("place {} in a batch of {} sequences", one.place, places));
      if (!planned.insert(one.place).second) refuse(fmt::format("the sequence at place {} is planned twice", one.place));
    }
  }
  if (static_cast<int64_t>(planned.size()) != places)
    base::fail_input("step plan of step {}: it has {} of the {} sequences of the batch", plan.step, planned.size(), places);
}

std::vector<int64_t> passes_of(const StepPlan& plan, int rank) {
  std::vector<int64_t> passes(static_cast<size_t>(plan.micro_batches), kNoUnit);
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const StepUnit& unit = plan.units[u];
    if (std::find(unit.ranks.begin(), unit.ranks.end(), rank) == unit.ranks.end()) continue;
    if (plan.micro_batches > 0)
      passes[static_cast<size_t>(unit.micro_batch)] = static_cast<int64_t>(u);
    else
      passes.push_back(static_cast<int64_t>(u));
  }
  return passes;
}

int64_t max_passes(const StepPlan& plan) {
  if (plan.micro_batches > 0) return plan.micro_batches;
  std::vector<int64_t> passes(static_cast<size_t>(plan.ranks), 0);
  for (const StepUnit& unit : plan.units)
    for (const int rank : unit.ranks) ++passes[static_cast<size_t>(rank)];
  return *std::max_element(passes.begin(), passes.end());
}

std::vector<double> predicted_load_s(const StepPlan& plan) {
  std::vector<double> load(static_cast<size_t>(plan.ranks), 0.0);
  for (const StepUnit& unit : plan.units)
    for (const int rank : unit.ranks) load[static_cast<size_t>(rank)] += unit.predicted_s;
  return load;
}

double predicted_step_s(const StepPlan& plan) {
  if (plan.micro_batches > 0) {
    std::vector<double> slowest(static_cast<size_t>(plan.micro_batches), 0.0);
    for (const StepUnit& unit : plan.units) {
      double& one = slowest[static_cast<size_t>(unit.micro_batch)];
      one = std::max(one, unit.predicted_s);
    }
    double sum = 0;
    for (const double one : slowest) sum += one;
    return sum;
  }
  std::vector<double> free_at(static_cast<size_t>(plan.ranks), 0.0);
  for (const StepUnit& unit : plan.units) {
    double start = 0;
    for (const int rank : unit.ranks) start = std::max(start, free_at[static_cast<size_t>(rank)]);
    for (const int rank : unit.ranks) free_at[static_cast<size_t>(rank)] = start + unit.predicted_s;
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

double predicted_imbalance(const StepPlan& plan) {
  double sum = 0;
  for (const double one : predicted_load_s(plan)) sum += one;
  return sum > 0 ? predicted_step_s(plan) * plan.ranks / sum : 1;
}

std::string to_json(const StepPlan& plan) { return base::compact(json_of(plan, true)); }

uint64_t plan_hash(const StepPlan& plan) { return base::checksum(base::compact(json_of(plan, false))); }

StepPlan parse_step_plan(std::string_view text, const std::string& origin) {
  const base::GuardedJson parsed =
      base::parse_json_guarded(text.substr(0, std::min(text.size(), static_cast<size_t>(kMaxPlanBytes) + 1)), /*depth_max=*/8);
  if (!parsed.trouble.empty() || static_cast<int64_t>(text.size()) > kMaxPlanBytes)
    base::fail_input("{}: no step plan: {}", origin, parsed.trouble.empty() ? "it is too long" : parsed.trouble);
  const Reader read{origin};
  const Json& all = parsed.value;
  StepPlan plan{.step = read.number(all, "step", 0, kMaxTokens),
                .ranks = static_cast<int>(read.number(all, "ranks", 1, kMaxRanks)),
                .micro_batches = read.number(all, "micro_batches", 0, kMaxRanks),
                .units = {}};
  const Json& units = read.at(all, "units");
  if (!units.is_array()) base::fail_input("{}: units = {} in a step plan: must be a list", origin, base::shown(units));
  for (const Json& one : units) {
    StepUnit& unit = plan.units.emplace_back();
    for (const int64_t rank : read.numbers(one, "ranks", 0, plan.ranks - 1)) unit.ranks.push_back(static_cast<int>(rank));
    const std::vector<int64_t> places = read.numbers(one, "places", 0, kMaxTokens), lengths = read.numbers(one, "lengths", 1, kMaxTokens);
    if (places.size() != lengths.size())
      base::fail_input("{}: a unit of a step plan with {} places and {} lengths", origin, places.size(), lengths.size());
    for (size_t i = 0; i < places.size(); ++i) unit.sequences.push_back({places[i], lengths[i]});
    unit.micro_batch = read.number(one, "micro_batch", 0, kMaxRanks);
    const Json& seconds = read.at(one, "predicted_s");
    if (!seconds.is_number()) base::fail_input("{}: predicted_s = {} in a step plan: must be a number", origin, base::shown(seconds));
    unit.predicted_s = seconds.get<double>();
  }
  return plan;
}

std::string degrees_text(const StepPlan& plan) {
  std::map<size_t, int64_t, std::greater<>> count;
  for (const StepUnit& unit : plan.units) ++count[unit.ranks.size()];
  std::string text;
  for (const auto& [degree, units] : count) text += fmt::format("{}{}x{}", text.empty() ? "" : " + ", units, degree);
  return text;
}

}  // namespace cairn::parallel
