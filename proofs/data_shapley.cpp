// Data Shapley: the value of training examples and sources. Exact values, two estimators, mislabelled examples, processes that are killed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "proofs/data_shapley_parts.h"
#include "proofs/study_tables.h"
#include "study/claims.h"
#include "study/value.h"
#include "study/value_estimators.h"
#include "study/value_gradient.h"
#include "study/value_study.h"
#include "study/value_utility.h"

namespace cairn::study {
namespace {

constexpr int64_t kInnerSeeds = 8;

// Normal features; the label is the side of a random plane, of which some training rows have the wrong one.
MadeTable made_rows(uint64_t seed, int64_t features, int64_t training, int64_t measured, int64_t flipped) {
  const base::Random random = base::Random(seed).for_purpose("rows");
  MadeTable made{.features = features};
  std::vector<float> plane(static_cast<size_t>(features));
  random.for_purpose("plane").fill_normal(plane);
  const int64_t rows = training + measured;
  made.values.resize(static_cast<size_t>(rows * features));
  random.for_purpose("features").fill_normal(made.values);
  std::vector<int64_t> wrong(static_cast<size_t>(rows));
  for (int64_t i = 0; i < flipped; ++i) wrong[static_cast<size_t>(i * training / std::max<int64_t>(1, flipped))] = 1;
  for (int64_t i = 0; i < rows; ++i) {
    double side = 0;
    for (int64_t k = 0; k < features; ++k)
      side += static_cast<double>(plane[static_cast<size_t>(k)]) * static_cast<double>(made.values[static_cast<size_t>(i * features + k)]);
    made.labels.push_back(static_cast<int64_t>(side > 0) ^ wrong[static_cast<size_t>(i)]);
  }
  made.columns.emplace_back("flipped", std::move(wrong));
  return made;
}

struct TableStudy {
  std::string study;  // keys of [study]
  int64_t validation = 0;
  uint64_t seed = 1;
  int processes = 1;
};

ValueRecipe table_recipe(const std::filesystem::path& folder, const TableStudy& what) {
  return read_value(
      {.text = fmt::format(R"(
[study]
kind = "value"
validation = {}
budget_hours = 10
{}
[model]
kind = "classifier"
hidden = [16]
[data]
kind = "table"
path = "{}"
test_file = "{}"
ignore = ["flipped"]
[train]
seed = {}
)",
                           what.validation, what.study, (folder / "training.csv").string(), (folder / "test.csv").string(), what.seed),
       .name = "the proof"},
      {});
}

void write_rows(const std::filesystem::path& folder, const MadeTable& rows, int64_t training) {
  base::make_folder(folder);
  write_made_table(folder / "training.csv", rows, 0, training);
  write_made_table(folder / "test.csv", rows, training, rows.rows() - training);
}

ValueResult run_table(const std::filesystem::path& folder, const std::string& name, const TableStudy& what) {
  base::Log quiet = base::Log::quiet();
  base::Stop never;
  return run_value(table_recipe(folder, what), {.out = folder / name, .processes = what.processes}, quiet, never);
}

// V of every subset, computed once: permutations of few players look their subsets up.
class KnownUtility final : public Utility {
 public:
  KnownUtility(const Utility& of) : of_(of) {}
  double value(std::span<const int64_t> samples) const override {
    uint64_t bits = 0;
    for (const int64_t one : samples) bits |= uint64_t{1} << one;
    const auto found = known_.find(bits);
    return found != known_.end() ? found->second : known_[bits] = of_.value(samples);
  }
  double empty() const override { return of_.empty(); }
  bool covers(std::span<const int64_t> samples) const override { return of_.covers(samples); }

 private:
  const Utility& of_;
  mutable std::map<uint64_t, double> known_;
};

class SumOf final : public Utility {
 public:
  SumOf(const Utility& a, const Utility& b) : a_(a), b_(b) {}
  double value(std::span<const int64_t> samples) const override { return a_.value(samples) + b_.value(samples); }
  double empty() const override { return a_.empty() + b_.empty(); }
  bool covers(std::span<const int64_t> samples) const override { return a_.covers(samples); }

 private:
  const Utility &a_, &b_;
};

// One player's samples count for nothing.
class Without final : public Utility {
 public:
  Without(const Utility& of, int64_t sample) : of_(of), sample_(sample) {}
  double value(std::span<const int64_t> samples) const override {
    const std::vector<int64_t> others = without(samples);
    return others.empty() || !of_.covers(others) ? of_.empty() : of_.value(others);
  }
  double empty() const override { return of_.empty(); }
  bool covers(std::span<const int64_t> samples) const override { return of_.covers(without(samples)); }

 private:
  std::vector<int64_t> without(std::span<const int64_t> samples) const {
    std::vector<int64_t> others(samples.begin(), samples.end());
    std::erase(others, sample_);
    return others;
  }
  const Utility& of_;
  int64_t sample_;
};

LabelledRows labelled(const MadeTable& made) {
  return {.features = made.features, .classes = 2, .values = {made.values.begin(), made.values.end()}, .labels = made.labels};
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

double largest_error(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

std::vector<std::vector<int64_t>> one_each(int64_t players) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < players; ++i) all.push_back({i});
  return all;
}

// 1. Eight points: exact values, and estimates from more and more permutations.
void exactness(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kPoints = 8, kMeasured = 200;
  const MadeTable made = made_rows(options.seed, 3, kPoints, kMeasured, 1);
  const LabelledRows rows = labelled(made);
  const auto learner = make_logistic_learner(rows, 1);
  const auto trained = make_utility({.learner = *learner, .rows = range(kPoints, kMeasured), .labels = rows.labels, .classes = 2});
  const KnownUtility utility(*trained);
  const PlayerValues game{.players = one_each(kPoints), .utility = utility, .seed = options.seed};
  const std::vector<double> exact = exact_values(subset_values(game, 0, 1 << kPoints), kPoints);
  const double whole = game.value(game.all()) - game.utility.empty();
  RunningValues running(kPoints);
  double off = 0, most_off = 0;
  int64_t t = 0;
  for (const auto& [permutations, bound] : {std::pair<int64_t, double>{200, 0.03}, {2000, 0.01}, {20000, 0.003}}) {
    for (; t < permutations; ++t) {
      const std::vector<double> row = permutation_row(game, t);
      running.add(row);
      off = std::abs(std::accumulate(row.begin(), row.begin() + kPoints, 0.0) - whole);
      most_off = std::max(most_off, off);
    }
    findings.at_most(fmt::format("1. 8 points, {} permutations: largest error of a value (exact: all 256 subsets)", permutations), 0,
                     largest_error(running.values(), exact), bound);
  }
  findings.at_most("1. likewise: largest distance of the sum of an order's marginals from V(all) - V(none)", 0, most_off, 1e-10);
  findings.at_most("1. likewise: that of the exact values", 0, std::abs(std::accumulate(exact.begin(), exact.end(), 0.0) - whole), 1e-10);
}

// 2. Equal players, a player that counts for nothing, sums of scores.
void axioms(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kPoints = 9, kMeasured = 200, kPermutations = 4000;
  MadeTable made = made_rows(options.seed + 1, 3, kPoints, kMeasured, 1);
  std::copy_n(made.values.begin(), 3, made.values.begin() + 8 * 3);  // the last point is the first one again
  made.labels[8] = made.labels[0];
  const LabelledRows rows = labelled(made);
  const auto learner = make_logistic_learner(rows, 1);
  const auto utility_of = [&](const char* metric) {
    return make_utility({.learner = *learner, .metric = metric, .rows = range(kPoints, kMeasured), .labels = rows.labels, .classes = 2});
  };
  const auto accuracy = utility_of("accuracy"), neg_loss = utility_of("neg_loss");
  const KnownUtility v1(*accuracy), v2(*neg_loss);
  const SumOf both(v1, v2);
  const Without null(v1, 4);
  const auto game_of = [&](const Utility& utility) {
    return PlayerValues{.players = one_each(kPoints), .utility = utility, .seed = options.seed};
  };
  const PlayerValues g1 = game_of(v1), g2 = game_of(v2), sum = game_of(both), lacking = game_of(null);
  double difference = 0, squares = 0, apart = 0, of_null = 0;
  for (int64_t t = 0; t < kPermutations; ++t) {
    const std::vector<double> a = permutation_row(g1, t), b = permutation_row(g2, t), c = permutation_row(sum, t),
                              d = permutation_row(lacking, t);
    difference += (a[0] - a[8]) / kPermutations;
    squares += (a[0] - a[8]) * (a[0] - a[8]) / kPermutations;
    for (size_t i = 0; i < kPoints; ++i) apart = std::max(apart, std::abs(a[i] + b[i] - c[i]));
    of_null = std::max(of_null, std::abs(d[4]));
  }
  const std::vector<double> exact = exact_values(subset_values(g1, 0, 1 << kPoints), kPoints);
  findings.at_most("2. a point and its copy: difference of their exact values", 0, std::abs(exact[0] - exact[8]), 1e-12);
  findings.at_most("2. likewise, 4,000 permutations: difference of the estimates, in standard errors", 0,
                   std::abs(difference) / std::sqrt((squares - difference * difference) / (kPermutations - 1)), 3);
  findings.at_most("2. a point that the score ignores: its largest marginal", 0, of_null, 0);
  findings.at_most("2. values of V1 + V2, against the sums of both values, same orders", 0, apart, 1e-12);
}

double point_at(const std::vector<ValueCurve>& curves, const std::string& plot, const std::string& label, double x) {
  for (const ValueCurve& one : curves)
    if (one.plot == plot && one.label == label)
      for (const auto& [at, y] : one.points)
        if (std::abs(at - x) < 1e-9) return y;
  return NAN;
}

// 3. Mislabelled points, at several seeds.
void corruption(const ProofOptions& options, Findings& findings, base::Log& log) {
  std::vector<double> found, left_out, dropped, kept;
  for (int64_t inner = 0; inner < kInnerSeeds; ++inner) {
    const std::filesystem::path folder = std::filesystem::path(options.scratch) / fmt::format("flips-{}", inner);
    write_rows(folder, made_rows(options.seed * 100 + static_cast<uint64_t>(inner), 5, 100, 2500, 20), 100);
    const ValueResult result = run_table(folder, "tmc",
                                         {.study = "corrupted = \"flipped\"\nmax_permutations = 300\nerror = 1e-9",
                                          .validation = 500,
                                          .seed = options.seed + static_cast<uint64_t>(inner)});
    if (!options.pictures.empty() && inner == 0)
      for (const char* name : {"removal", "detection"})
        std::filesystem::copy_file(folder / "tmc" / fmt::format("{}.svg", name),
                                   std::filesystem::path(options.pictures) / fmt::format("data-shapley-{}.svg", name),
                                   std::filesystem::copy_options::overwrite_existing);
    found.push_back(point_at(result.curves, "detection", "tmc", 0.3));
    left_out.push_back(point_at(result.curves, "detection", "leave-one-out", 0.3));
    const double full = point_at(result.curves, "removal", "random", 0);
    dropped.push_back(point_at(result.curves, "removal", "random", 0.2) - point_at(result.curves, "removal", "highest first", 0.2));
    kept.push_back(point_at(result.curves, "removal", "lowest first", 0.2) - full);
    log.info(
        "flips, inner seed {}: found {:.2f} (leave-one-out {:.2f}), highest 20 % cost {:.3f} more than random, lowest 20 % bring {:+.3f}; "
        "{:.0f} trainings, {:.1f} of 100 players",
        inner, found.back(), left_out.back(), dropped.back(), kept.back(), result.trainings, result.position);
  }
  const std::string what = fmt::format("3. 100 points, 20 of them mislabelled, mean of {} inner seeds: ", kInnerSeeds);
  findings.at_least(what + "share of those among the lowest 30 %", 0.3, mean_of(found), 0.75);
  findings.at_least(what + "the same, beyond leave-one-out", 0, mean_of(found) - mean_of(left_out), 0.10);
  findings.at_least(what + "accuracy lost by dropping the 20 % highest, beyond 20 % at random", 0, mean_of(dropped), 0.10);
  findings.at_least(what + "accuracy gained by dropping the 20 % lowest", 0, mean_of(kept), 0);
}

// 5. Orders that end early.
void truncation(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kPoints = 100, kOrders = 300;
  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "truncation";
  write_rows(folder, made_rows(options.seed + 7, 5, kPoints, 500, 20), kPoints);
  const auto study_of = [&](const std::string& keys) {
    return TableStudy{.study = fmt::format("max_permutations = {}\nerror = 1e-9\ncurves = false\n{}", kOrders, keys),
                      .validation = 500,
                      .seed = options.seed,
                      .processes = 2};
  };
  const ValueResult whole = run_table(folder, "whole", study_of("tolerance = 0")),
                    cut = run_table(folder, "cut", study_of("tolerance = 0.01"));
  // The same orders without any truncation, through the estimator itself.
  base::Log quiet = base::Log::quiet();
  const base::Stop never;
  const std::unique_ptr<ValueStudy> study =
      open_value_study(table_recipe(folder, study_of("tolerance = 0")), {.out = folder / "estimator"}, quiet, never);
  const PlayerValues untruncated{.players = study->players, .utility = *study->utility, .seed = study->seed};
  RunningValues running(kPoints);
  for (int64_t t = 0; t < kOrders; ++t) running.add(permutation_row(untruncated, t));
  findings.at_most("5. tolerance 0: mean players of an order (all 100)", 100, std::abs(whole.position - kPoints), 0);
  findings.at_most("5. tolerance 0, 300 orders: largest difference of a value from the estimator that never truncates", 0,
                   largest_error(whole.values, running.values()), 1e-12);
  findings.at_most("5. tolerance 0: distance of the sum of values from V(all) - V(none)", 0,
                   std::abs(std::accumulate(whole.values.begin(), whole.values.end(), 0.0) - (whole.full - whole.empty)), 1e-10);
  findings.at_most("5. tolerance 0.01: trainings, as a share of those without", 1, cut.trainings / whole.trainings, 0.999);
  findings.at_least("5. tolerance 0.01: rank correlation with the values without", 1, rank_correlation(cut.values, whole.values), 0.95);
}

// Kills a worker process of a study each time its file of results has grown by some, so that every kill falls into the work.
class WorkerKills {
 public:
  WorkerKills(std::filesystem::path rows, int64_t bytes, int kills)
      : rows_(std::move(rows)), bytes_(bytes), kills_(kills), thread_([this] { watch(); }) {}
  ~WorkerKills() { stop(); }
  void started(int pid) {
    const std::lock_guard lock(mutex_);
    workers_.push_back(pid);
  }
  // How many were killed. No more will be.
  int stop() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return killed_;
  }

 private:
  void watch() {
    while (!ended_ && killed_ < kills_) {
      std::error_code error;
      const auto written = static_cast<int64_t>(std::filesystem::file_size(rows_, error));
      if (error || written < (killed_ + 1) * bytes_ || !kill_newest()) ::poll(nullptr, 0, 1);
    }
  }
  bool kill_newest() {
    const std::lock_guard lock(mutex_);
    if (workers_.empty()) return false;
    ::kill(workers_.back(), SIGKILL);
    workers_.pop_back();
    ++killed_;
    return true;
  }

  const std::filesystem::path rows_;
  const int64_t bytes_;
  const int kills_;
  std::mutex mutex_;
  std::vector<int> workers_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> killed_ = 0;
  std::thread thread_;  // last: it reads all of the above
};

// 4. Processes; one that is killed; a study that is killed and started again.
void processes(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "processes";
  write_rows(folder, made_rows(options.seed + 3, 5, 80, 500, 16), 80);
  TableStudy what{.study = "max_permutations = 200\nerror = 1e-9\ncurves = false\ntolerance = 0", .validation = 500, .seed = options.seed};
  const ValueResult one = run_table(folder, "one", what);
  double most = 0;
  for (const int processes : {2, 4}) {
    what.processes = processes;
    most = std::max(most, largest_error(run_table(folder, fmt::format("{}", processes), what).values, one.values));
  }
  findings.at_most("4. 1, 2 and 4 processes: largest difference of a value", 0, most, 1e-9);

  base::Log quiet = base::Log::quiet();
  base::Stop never;
  constexpr int64_t kRowBytes = (80 + 3 + 3) * 8;
  what.processes = 2;
  WorkerKills kills(folder / "killed" / "rows.bin", 40 * kRowBytes, 3);
  const StudySetup setup{.out = folder / "killed", .processes = 2, .on_start = [&](int pid) { kills.started(pid); }};
  const ValueResult after = run_value(table_recipe(folder, what), setup, quiet, never);
  findings.at_least("4. worker processes killed, after 40, 80 and 120 of 200 permutations", 0, kills.stop(), 3);
  findings.at_most("4. likewise: largest difference of a value", 0, largest_error(after.values, one.values), 0);

  const std::filesystem::path rows = folder / "resumed" / "rows.bin";
  const pid_t child = ::fork();
  if (child == 0) {
    run_value(table_recipe(folder, what), {.out = folder / "resumed", .processes = 2}, quiet, never);
    ::_exit(0);
  }
  const base::RealClock clock;
  std::error_code error;
  constexpr int64_t kHalf = 100 * kRowBytes;
  while (base::seconds(clock.now()) < 60 &&
         !(std::filesystem::exists(rows, error) && static_cast<int64_t>(std::filesystem::file_size(rows, error)) > kHalf))
    ::poll(nullptr, 0, 2);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto left = static_cast<double>(std::filesystem::file_size(rows, error)) / kRowBytes;
  log.info("killed after {:.0f} of 200 permutations", left);
  const ValueResult resumed = run_table(folder, "resumed", what);
  findings.at_most("4. the whole study killed (kill -9): permutations that were done", 200, left, 199);
  findings.at_most("4. likewise, started again: largest difference of a value", 0, largest_error(resumed.values, one.values), 0);
}

// 6. G-Shapley: many permutations at once, against one at a time.
double vectorised(int64_t points, int64_t players, int64_t block, const std::vector<int64_t>& hidden, at::Device device,
                  const ProofOptions& options, double* ratio) {
  const MadeTable made = made_rows(options.seed + 5, 20, points, 500, points / 5);
  const LabelledRows rows = labelled(made);
  const GradientValues game({.rows = rows,
                             .players = one_each(players),
                             .validation = range(points, 500),
                             .hidden = hidden,
                             .metric = "neg_loss",
                             .seed = options.seed,
                             .device = device});
  game.rows(0, 1, 0.01);  // warm-up
  const size_t width = static_cast<size_t>(players) + kRowTail;
  const base::RealClock clock;
  const std::vector<double> together = game.rows(0, block, 0.01);
  const double together_s = base::seconds(clock.now());
  std::vector<double> alone;
  const int64_t some = std::min<int64_t>(block, 8);
  const base::RealClock again;
  for (int64_t t = 0; t < some; ++t) {
    const std::vector<double> row = game.rows(t, 1, 0.01);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  *ratio = base::seconds(again.now()) / static_cast<double>(some) / (together_s / static_cast<double>(block));
  return largest_error({together.begin(), together.begin() + static_cast<int64_t>(width) * some}, alone);
}

void gradient_values(const ProofOptions& options, Findings& findings) {
  double ratio = 0;
  const double apart = vectorised(200, 200, 64, {32}, at::kCPU, options, &ratio);
  findings.at_most("6. G-Shapley, 64 permutations at once against one at a time: largest difference of a marginal", 0, apart, 1e-4);
  findings.at_least("6. likewise: speed, as a multiple of one at a time (this machine's cores)", 1, ratio, 1);
  const std::filesystem::path folder = std::filesystem::path(options.scratch) / "gradient";
  write_rows(folder, made_rows(options.seed + 6, 5, 100, 500, 20), 100);
  TableStudy what{.study = "method = \"g\"\nlearner = \"recipe\"\nmax_permutations = 256\nerror = 1e-9\ncorrupted = \"flipped\"",
                  .validation = 250,
                  .seed = options.seed};
  const ValueResult one = run_table(folder, "g", what);
  what.processes = 2;
  const ValueResult two = run_table(folder, "g2", what);
  findings.at_most("6. G-Shapley, 1 and 2 processes: largest difference of a value", 0, largest_error(one.values, two.values), 1e-9);
  findings.at_least("6. G-Shapley, 20 of 100 points mislabelled: share of those among the lowest 30 %", 0.3,
                    point_at(one.curves, "detection", "g", 0.3), 0.45);
}

}  // namespace

void prove_data_shapley(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_data_shapley_text(options, findings, log);  // first: it may refuse --data
  exactness(options, findings);
  axioms(options, findings);
  processes(options, findings, log);
  corruption(options, findings, log);
  truncation(options, findings);
  gradient_values(options, findings);
}

void prove_data_shapley_on_gpu(const ProofOptions& options, Findings& findings, base::Log&) {
  double ratio = 0;
  const double apart = vectorised(10'000, options.full ? 10'000 : 1000, 256, {64, 64}, at::Device("cuda"), options, &ratio);
  findings.at_least(
      "G-Shapley of a classifier with 2 hidden layers on 10,000 points, 256 permutations at once: speed, as a multiple of one at a time", 1,
      ratio, 20);
  findings.at_most("likewise: largest difference of a marginal", 0, apart, 1e-4);
}

}  // namespace cairn::study
