// The course of a study of values:
//
//   1. V(all), its mean and deviation over resamples of the validation samples, V(none)
//   2. units of work over processes: permutations (tmc), blocks of them (g), players (loo), blocks of subsets (exact). Iteration t draws
//   its
//      order from (seed, t), whoever computes it, and sums are formed in the order of t: no figure depends on the number of processes.
//   3. after every save_every permutations: has the estimate settled?
//   4. values, curves, report
#include "study/value.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "study/result_rows.h"
#include "study/value_study.h"
#include "study/work_queue.h"

namespace cairn::study {
namespace {

constexpr int64_t kResamples = 100, kSubsetsAtOnce = 16, kPermutationsMin = 100;
constexpr size_t kCurvePlayers = 25;

// The samples' values so far, for the plot of convergence.
class Convergence {
 public:
  explicit Convergence(const ValueStudy& study) {
    const std::vector<size_t> order = order_of_players(study.seed, -1, study.players.size());
    for (size_t i = 0; i < std::min(kCurvePlayers, order.size()); ++i) {
      chosen_.push_back(order[i]);
      curves_.push_back({.plot = "convergence", .label = study.names[order[i]]});
    }
  }
  void add(int64_t permutations, const std::vector<double>& values) {
    for (size_t i = 0; i < chosen_.size(); ++i) curves_[i].points.emplace_back(permutations, values[chosen_[i]]);
  }
  const std::vector<ValueCurve>& curves() const { return curves_; }

 private:
  std::vector<size_t> chosen_;
  std::vector<ValueCurve> curves_;
};

class Run {
 public:
  Run(const ValueStudy& study, const StudySetup& setup, ValueResult& result, base::Log& log, const base::Stop& stop)
      : study_(study), setup_(setup), result_(result), log_(log), stop_(stop), rows_(setup.out / "rows.bin", study.identity) {}

  void measure_all() {
    const std::vector<int64_t> all = game().all();
    const base::RealClock clock;
    result_.full = game().value(all);
    result_.training_s = base::seconds(clock.now());
    const std::vector<double> resampled = study_.utility->resampled(all, kResamples, study_.seed);
    double squares = 0;
    result_.full_mean = std::accumulate(resampled.begin(), resampled.end(), 0.0) / kResamples;
    for (const double one : resampled) squares += (one - result_.full_mean) * (one - result_.full_mean);
    result_.deviation = std::sqrt(squares / kResamples);
    result_.empty = study_.utility->empty();
    log_.info("V(all) = {:.5f} (over resamples {:.5f} +- {:.5f}), V(none) = {:.5f}, {:.2g} s for a training", result_.full,
              result_.full_mean, result_.deviation, result_.empty, result_.training_s);
    check_budget();
  }

  void estimate() {
    const std::string& method = study_.options.method;
    if (method == "exact") return exact();
    if (method == "loo") return leave_one_out();
    permutations();
  }

 private:
  PlayerValues game() const {
    const ValueOptions& o = study_.options;
    PlayerValues made{.players = study_.players, .utility = *study_.utility, .seed = study_.seed};
    made.full_mean = result_.full_mean;
    made.patience = o.patience;
    if (o.bootstrap)
      made.near = result_.deviation;
    else if (o.tolerance > 0)
      made.near = o.tolerance * std::abs(result_.full_mean);
    return made;
  }

  int64_t most_permutations() const { return study_.options.max_permutations; }

  void check_budget() const {
    const auto n = static_cast<double>(study_.players.size());
    const std::string& method = study_.options.method;
    const double units = method == "exact" ? std::pow(2, n)
                         : method == "loo" ? n
                         : method == "g"   ? 0
                                           : n * (most_permutations() > 0 ? static_cast<double>(most_permutations()) : 3 * n);
    const double hours = units * result_.training_s / 3600 / setup_.processes;
    if (hours > study_.options.budget_hours)
      base::fail_input(
          "study.budget_hours = {}: about {:.3g} trainings of {:.3g} s on {} would take {:.3g} hours. Value sources in place of examples, "
          "lower study.max_permutations, or raise it.",
          study_.options.budget_hours, units, result_.training_s, base::plural(setup_.processes, "process"), hours);
  }

  WorkQueue queue() {
    return {.processes = study_.options.device == "cuda" ? 1 : setup_.processes,
            .arrived = [this](int64_t unit, const std::vector<double>& result) { rows_.add(unit, result); },
            .known = rows_.take(),
            .on_start = setup_.on_start,
            .stop = &stop_};
  }
  void run(WorkQueue queue) {
    const auto compute = std::move(queue.compute);
    queue.compute = [compute](int64_t unit) {
      at::set_num_threads(1);  // so that products do not depend on the number of processes
      return compute(unit);
    };
    const bool done = run_queue(std::move(queue));
    at::set_num_threads(setup_.threads);
    if (!done) throw Error(Error::Kind::cancelled, "the study was stopped; start it again to go on");
  }

  void exact() {
    const size_t players = study_.players.size();
    const int64_t subsets = int64_t{1} << players;
    const PlayerValues played = game();
    std::vector<double> values;
    WorkQueue work = queue();
    work.end = (subsets + kSubsetsAtOnce - 1) / kSubsetsAtOnce;
    work.compute = [&](int64_t unit) {
      return subset_values(played, unit * kSubsetsAtOnce, std::min(kSubsetsAtOnce, subsets - unit * kSubsetsAtOnce));
    };
    work.deliver = [&](int64_t, const std::vector<double>& some) {
      values.insert(values.end(), some.begin(), some.end());
      log_.info("{} of {} subsets", values.size(), subsets);
      return true;
    };
    run(std::move(work));
    result_.trainings = static_cast<double>(subsets - 1);
    result_.values = exact_values(values, players);
    result_.errors.assign(players, 0);
  }

  void leave_one_out() {
    const PlayerValues played = game();
    WorkQueue work = queue();
    work.end = static_cast<int64_t>(study_.players.size());
    work.compute = [&](int64_t unit) {
      std::vector<size_t> others;
      for (size_t i = 0; i < played.players.size(); ++i)
        if (static_cast<int64_t>(i) != unit) others.push_back(i);
      return std::vector<double>{result_.full - played.value(played.samples_of(others))};
    };
    work.deliver = [&](int64_t, const std::vector<double>& one) {
      result_.values.push_back(one.front());
      return true;
    };
    run(std::move(work));
    result_.trainings = static_cast<double>(work_done()) + 1;
    result_.errors.assign(result_.values.size(), 0);
  }
  size_t work_done() const { return result_.values.size(); }

  void permutations() {
    const ValueOptions& o = study_.options;
    const bool gradient = o.method == "g";
    const int64_t block = gradient ? o.block : 1;
    const size_t width = study_.players.size() + kRowTail;
    const PlayerValues played = game();
    if (gradient) {
      result_.learning_rate = o.learning_rate > 0 ? o.learning_rate : study_.gradient->best_learning_rate();
      result_.empty = study_.gradient->untrained(0, block);
      log_.info("learning rate {:.3g}, an untrained model scores {:.5f}", result_.learning_rate, result_.empty);
    }
    RunningValues running(study_.players.size());
    Convergence convergence(study_);
    result_.converged = false;
    WorkQueue work = queue();
    work.compute = [&](int64_t unit) {
      return gradient ? study_.gradient->rows(unit * block, block, result_.learning_rate) : permutation_row(played, unit);
    };
    work.deliver = [&](int64_t, const std::vector<double>& rows) {
      for (size_t at = 0; at < rows.size(); at += width) {
        const auto begin = rows.begin() + static_cast<int64_t>(at);
        running.add({begin, begin + static_cast<int64_t>(width)});
        if (!goes_on(running, convergence)) return false;
      }
      return true;
    };
    run(std::move(work));
    result_.permutations = running.count();
    result_.trainings = running.trainings();
    result_.position = running.position();
    result_.change = running.change();
    result_.values = running.values();
    result_.errors = running.errors();
    result_.curves = convergence.curves();
  }

  // After each permutation, in order: whether more are wanted.
  bool goes_on(const RunningValues& running, Convergence& convergence) {
    const ValueOptions& o = study_.options;
    const int64_t count = running.count();
    const bool look = count % o.save_every == 0, last = o.max_permutations > 0 && count >= o.max_permutations;
    if (!look && !last) return true;
    const std::vector<double> values = running.values();
    convergence.add(count, values);
    const double change = running.change();
    log_.info("{} permutations: {:.1f} players each, error {:.3g}, sum of values {:.5f} of {:.5f}", count, running.position(), change,
              std::accumulate(values.begin(), values.end(), 0.0), result_.full - result_.empty);
    result_.converged = count >= kPermutationsMin && change < o.error;
    return !result_.converged && !last;
  }

  const ValueStudy& study_;
  const StudySetup& setup_;
  ValueResult& result_;
  base::Log& log_;
  const base::Stop& stop_;
  ResultRows rows_;
};

}  // namespace

ValueResult run_value(const ValueRecipe& recipe, const StudySetup& setup, base::Log& log, const base::Stop& stop) {
  const base::RealClock clock;
  base::make_folder(setup.out);
  const std::unique_ptr<ValueStudy> study = open_value_study(recipe, setup, log, stop);
  ValueResult result{.options = recipe.study, .names = study->names};
  log.info("{}: {}, {} to measure on", recipe.study.method, base::plural(static_cast<int64_t>(study->players.size()), "player"),
           base::plural(static_cast<int64_t>(study->validation.size()), "sample"));
  Run run(*study, setup, result, log, stop);
  run.measure_all();
  run.estimate();
  if (recipe.study.curves)
    for (ValueCurve& one : value_curves(*study, result.values, log)) result.curves.push_back(std::move(one));
  result.seconds = base::seconds(clock.now());
  write_value_report(*study, result, setup.out);
  write_value_column(*study, recipe, result, setup, log);
  return result;
}

}  // namespace cairn::study
