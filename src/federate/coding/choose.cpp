#include "federate/coding/choose.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace cairn::federate {
namespace {

double load_of(const Task& task, const Scheme& scheme) {
  int64_t units = 0;
  for (const Slot& slot : task)
    for (const int chunk : slot.chunks) units += scheme.chunks()[static_cast<size_t>(chunk)].count;
  return static_cast<double>(units) / static_cast<double>(scheme.units());
}

// All parameters of a kind; those that give the same rounds only once.
std::vector<SchemeSpec> candidates(SchemeKind kind, const ChooseOptions& options) {
  std::vector<SchemeSpec> all;
  const int n = options.workers;
  if (kind == SchemeKind::none) all.push_back({});
  for (int s = 1; kind == SchemeKind::gc && s < n; ++s) all.push_back({.kind = kind, .s = s});
  for (int b = 1; kind == SchemeKind::srsgc && b <= options.delay_max; ++b)
    for (int lambda = 1; lambda < n; lambda += 2)  // W = B + 1: s = ceil(lambda / 2)
      all.push_back({.kind = kind, .b = b, .w = b + 1, .lambda = lambda});
  for (int b = 1; kind == SchemeKind::msgc && b <= options.delay_max; ++b)
    for (int w = b + 1; w - 2 + b <= options.delay_max; ++w)
      for (int lambda = 0; lambda <= n; ++lambda) all.push_back({.kind = kind, .b = b, .w = w, .lambda = lambda});
  return all;
}

}  // namespace

Replayed replay(std::unique_ptr<Scheme> scheme, double mu, const WorkerSeconds& seconds) {
  Rounds rounds(std::move(scheme), mu);
  Replayed sums;
  while (!rounds.over()) {
    const std::vector<Task>& tasks = rounds.begin();
    std::vector<std::pair<double, int>> arrivals;
    for (size_t i = 0; i < tasks.size(); ++i)
      if (!tasks[i].empty())
        arrivals.emplace_back(seconds(rounds.round(), static_cast<int>(i), load_of(tasks[i], rounds.scheme())), static_cast<int>(i));
    std::sort(arrivals.begin(), arrivals.end());
    double end = 0;
    for (size_t next = 0;; ++next) {
      const std::optional<double> closes = rounds.closes_at();
      if (closes && (next == arrivals.size() || *closes <= arrivals[next].first)) {
        end = *closes;
        break;
      }
      CAIRN_CHECK(next < arrivals.size(), "round {} does not close with all replies", rounds.round());
      rounds.arrived(arrivals[next].second, arrivals[next].first);
    }
    const ClosedRound closed = rounds.close(end);
    sums.seconds += end;
    sums.waited += closed.waited;
    sums.late += std::count(closed.late.begin(), closed.late.end(), 1);
    sums.jobs += closed.completed.has_value();
    ++sums.rounds;
  }
  return sums;
}

WorkerSeconds Profile::times() const {
  return [profile = *this](int64_t round, int worker, double load) {
    const auto& of_round = profile.seconds[static_cast<size_t>(round) % profile.seconds.size()];
    return std::max(1e-9, of_round[static_cast<size_t>(worker)] + profile.per_load * (load - profile.load));
  };
}

double fit_per_load(const std::vector<std::pair<double, double>>& measured) {
  double loads = 0, seconds = 0;
  for (const auto& [load, took] : measured) loads += load, seconds += took;
  const auto n = static_cast<double>(measured.size());
  double with = 0, squares = 0;
  for (const auto& [load, took] : measured) {
    with += (load - loads / n) * (took - seconds / n);
    squares += (load - loads / n) * (load - loads / n);
  }
  return squares > 0 ? std::max(0.0, with / squares) : 0;
}

std::vector<Choice> rank_parameters(const ChooseOptions& options, const WorkerSeconds& seconds) {
  std::vector<Choice> all;
  CodeCache own;
  CodeCache* const codes = options.codes ? options.codes : &own;
  for (const SchemeKind kind : options.kinds)
    for (const SchemeSpec& spec : candidates(kind, options)) {
      std::unique_ptr<Scheme> scheme;
      try {
        scheme = make_scheme(spec, options.workers, options.jobs, options.code, options.seed, codes);
      } catch (const Error& error) {
        if (error.kind() != Error::Kind::bad_input) throw;
        continue;  // no code for these numbers
      }
      const double load = scheme->load();
      all.push_back({spec, replay(std::move(scheme), options.mu, seconds).seconds, load});
    }
  std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) { return a.seconds < b.seconds; });
  return all;
}

}  // namespace cairn::federate
