// Supernets with delayed shrinking: the whole network trains alone for half of the run; then small networks are trained with it, their
// learning rate rising from 0. Against small networks from the first step on (early), after 70 % of the run with a second schedule (late),
// and without the ramp, all at the same work. Everything runs through the trainer; the data are labelled points (proofs/deps_toy.h).
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "model/model.h"
#include "proofs/deps_toy.h"
#include "proofs/process_time.h"
#include "study/claims.h"
#include "study/curves_svg.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/job.h"
#include "train/supernet/calibrate.h"
#include "train/supernet/shrinking.h"
#include "train/supernet/subnet_space.h"
#include "train/take_step.h"

namespace cairn::study {

void prove_deps_exactly(const ProofOptions& options, Findings& findings, base::Log& log);

namespace {

constexpr int64_t kUnits = 60, kStepsOfUnit = 125;  // of the work of the whole network
constexpr int64_t kMeasuredSubnets = 15;
constexpr int64_t kPoints = 60000, kTestPoints = 6000, kCalibration = 2000, kLongCalibration = 20000;

struct ShrinkArm {
  std::string name;
  Assignments sets;
  double begins = 0;  // fraction of the run before the small networks
};

const std::vector<ShrinkArm>& shrink_arms() {
  static const std::vector<ShrinkArm> list{
      {"early", {"supernet.method=early"}, 0},
      {"late", {"supernet.method=late", "supernet.shrink_at=0.7"}, 0.7},
      {"delayed", {"supernet.shrink_at=0.5", "supernet.ramp=0.03"}, 0.47},
      {"no ramp", {"supernet.shrink_at=0.5", "supernet.ramp=0"}, 0.5},
  };
  return list;
}

// Accuracies in points.
struct ArmFound {
  double largest = 0, smallest = 0, mean = 0;
  double before = 0, after_31 = 0, after_125 = 0;        // of the whole network, around the beginning of shrinking
  double uncalibrated = 0, long_calibration = 0;         // of the smallest
  double seconds = 0;                                    // of all steps
  double seconds_alone = 0, seconds_together = 0;        // median of a step without and with small networks
  std::vector<std::pair<double, double>> by_flops = {};  // FLOPs and accuracy of the fixed subnets
};

double accuracy_of(train::Job& job, const model::Subnet& subnet, int64_t calibration) {
  const train::ScopedSubnet scoped(job, subnet, calibration);
  return 100 * train::evaluate_held_out(job).measures.at(0);
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// The work of a step with small networks, in steps of the whole one.
double work_of_shrinking(const train::SubnetSpace& space, int64_t nets) {
  constexpr uint64_t kDraws = 400;
  const double whole = flops_of(space.whole(), space.shape);
  double mean = 0;
  for (uint64_t i = 0; i < kDraws; ++i) mean += flops_of(space.draw(base::Random(5).for_index(i)), space.shape) / whole / kDraws;
  return 1 + flops_of(space.smallest(), space.shape) / whole + static_cast<double>(nets - 2) * mean;
}

void on_one_rank(const base::Recipe& recipe, const std::function<void(train::Job&)>& act, const std::string& device = "cpu") {
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         const std::unique_ptr<train::Job> job =
             train::build(world, recipe, {.out = {}, .cache = {}, .device = device, .terminal = nullptr}, {});
         act(*job);
       }))
    if (error) std::rethrow_exception(error);
}

int64_t steps_of(const ShrinkArm& arm, double work) {
  return std::llround(static_cast<double>(kUnits * kStepsOfUnit) / (arm.begins + (1 - arm.begins) * work));
}

// The fixed subnets, the smallest and the whole network at the end of a run.
void measure_end(train::Job& job, const train::SubnetSpace& space, ArmFound& found) {
  found.largest = accuracy_of(job, space.whole(), kCalibration);
  found.smallest = accuracy_of(job, space.smallest(), kCalibration);
  found.long_calibration = accuracy_of(job, space.smallest(), kLongCalibration);
  const model::Subnet smallest = space.smallest();
  job.engine.options.subnet = &smallest;
  found.uncalibrated = 100 * train::evaluate_held_out(job).measures.at(0);
  job.engine.options.subnet = nullptr;
  for (uint64_t i = 0; i < kMeasuredSubnets; ++i) {
    const model::Subnet subnet = space.draw(base::Random(11).for_index(i));
    const double accuracy = accuracy_of(job, subnet, kCalibration);
    found.mean += accuracy / static_cast<double>(kMeasuredSubnets);
    found.by_flops.emplace_back(flops_of(subnet, space.shape), accuracy);
  }
}

ArmFound run_arm(const base::Recipe& recipe, const ShrinkArm& arm, int64_t steps, const std::string& device = "cpu") {
  ArmFound found;
  on_one_rank(
      with(recipe, {fmt::format("train.steps={}", steps)}),
      [&](train::Job& job) {
        const train::SubnetSpace space = train::subnet_space(job);
        const auto first = static_cast<int64_t>(std::ceil(arm.begins * static_cast<double>(steps)));  // steps before the small networks
        std::vector<double> alone, together;
        for (int64_t step = 1; step <= steps; ++step) {
          const auto begun = std::chrono::steady_clock::now();
          train::take_step(job);
          job.progress.steps_done = step;
          const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
          (step <= first ? alone : together).push_back(seconds);
          found.seconds += seconds;
          if (arm.begins == 0) continue;
          if (step == first) found.before = accuracy_of(job, space.whole(), kCalibration);
          if (step == first + 31) found.after_31 = accuracy_of(job, space.whole(), kCalibration);
          if (step == first + 125) found.after_125 = accuracy_of(job, space.whole(), kCalibration);
        }
        found.seconds_alone = median_of(alone), found.seconds_together = median_of(together);
        measure_end(job, space, found);
      },
      device);
  return found;
}

// What all steps of a run of these cost, without evaluation.
double cpu_s_of_steps(const base::Recipe& recipe, int64_t steps) {
  double seconds = 0;
  on_one_rank(with(recipe, {fmt::format("train.steps={}", steps)}), [&](train::Job& job) {
    const double begun = process_cpu_s();
    for (int64_t step = 1; step <= steps; ++step) {
      train::take_step(job);
      job.progress.steps_done = step;
    }
    seconds = process_cpu_s() - begun;
  });
  return seconds;
}

// What a run of delayed shrinking costs, as a share of one of early shrinking with as many steps. They take turns.
double cost_of_delayed(const base::Recipe& recipe) {
  constexpr int64_t kSteps = 1000;
  const ShrinkArm &early = shrink_arms()[0], &delayed = shrink_arms()[2];
  double of_early = 0, of_delayed = 0;
  for (int round = 0; round < 2; ++round) {
    of_delayed += cpu_s_of_steps(with(recipe, delayed.sets), kSteps);
    of_early += cpu_s_of_steps(with(recipe, early.sets), kSteps);
  }
  return of_delayed / of_early;
}

using ArmResults = std::map<std::string, std::vector<ArmFound>>;  // by arm, then by seed

double mean_over(const std::vector<ArmFound>& found, double ArmFound::*field) {
  double sum = 0;
  for (const ArmFound& one : found) sum += one.*field / static_cast<double>(found.size());
  return sum;
}

ArmResults run_arms(const ProofOptions& options, double& cost, base::Log& log) {
  ArmResults results;
  for (uint64_t i = 0; i < (options.full ? 3u : 1u); ++i) {
    ProofOptions seeded = options;
    seeded.seed = options.seed + i;
    const std::filesystem::path points = std::filesystem::path(options.scratch) / fmt::format("cube-{}", seeded.seed);
    write_cube_points(points, seeded.seed, kPoints, kTestPoints);
    const base::Recipe recipe = cube_recipe(seeded, points, {fmt::format("eval.samples={}", kTestPoints), "train.steps=100"});
    if (i == 0) cost = cost_of_delayed(recipe);
    double work = 0;
    on_one_rank(recipe, [&](train::Job& job) {
      work = work_of_shrinking(train::subnet_space(job), job.config.settings.model.supernet.nets_per_step);
    });
    for (const ShrinkArm& arm : shrink_arms()) {
      const int64_t steps = steps_of(arm, work);
      const ArmFound found = run_arm(with(recipe, arm.sets), arm, steps);
      log.info(
          "seed {}, {}: {} steps, accuracy of the whole {:.1f}, smallest {:.1f}, mean of {} {:.1f}; whole before and 31 and 125 steps "
          "after shrinking begins {:.1f}, {:.1f}, {:.1f}; a step takes {:.1f} ms alone, {:.1f} ms with small networks",
          seeded.seed, arm.name, steps, found.largest, found.smallest, kMeasuredSubnets, found.mean, found.before, found.after_31,
          found.after_125, 1e3 * found.seconds_alone, 1e3 * found.seconds_together);
      results[arm.name].push_back(found);
    }
  }
  return results;
}

void draw_front(const ProofOptions& options, const ArmResults& results) {
  CurvesPicture picture{.title = "15 networks of each supernet", .across = "FLOPs of a forward pass", .up = "accuracy, percent"};
  for (const char* arm : {"early", "late", "delayed"}) {
    Curve curve{.label = arm, .colour = curve_colour(picture.curves.size()), .points = results.at(arm).front().by_flops};
    std::ranges::sort(curve.points);
    picture.curves.push_back(std::move(curve));
  }
  write_curves(options.pictures, "deps-subnets", picture);
}

void judge_arms(const ArmResults& results, double cost, Findings& findings) {
  const auto mean = [&](const char* arm, double ArmFound::*field) { return mean_over(results.at(arm), field); };
  const size_t seeds = results.at("delayed").size();
  const std::string over = seeds == 1 ? "" : fmt::format(", mean of {} seeds", seeds);
  const double delayed = mean("delayed", &ArmFound::mean);
  findings.at_least(fmt::format("1. accuracy of the mean subnet above early shrinking, same work, points{}", over),
                    mean("early", &ArmFound::mean), delayed - mean("early", &ArmFound::mean), 3);
  findings.at_least(fmt::format("1. accuracy of the mean subnet above late shrinking, same work, points{}", over),
                    mean("late", &ArmFound::mean), delayed - mean("late", &ArmFound::mean), 0.5);
  const auto lost = [&](const char* arm) { return mean(arm, &ArmFound::before) - mean(arm, &ArmFound::after_31); };
  findings.at_most(fmt::format("2. with the ramp: accuracy that the whole network loses in 31 steps of shrinking, points{}", over),
                   lost("no ramp"), lost("delayed"), 2);
  findings.at_least(fmt::format("2. without the ramp: the same, points{}", over), lost("delayed"), lost("no ramp"), 4);
  findings.at_most("3. CPU seconds of a run of delayed shrinking, of early shrinking with as many steps", 1, cost, 0.8);
  const double calibrated = mean("delayed", &ArmFound::smallest);
  findings.at_most("4. smallest network without statistics of its own: accuracy, of that with them", 1,
                   mean("delayed", &ArmFound::uncalibrated) / calibrated, 0.8);
  findings.at_most(
      fmt::format("4. statistics of {} samples against those of {}: difference of accuracy, points", kCalibration, kLongCalibration),
      mean("delayed", &ArmFound::long_calibration), std::abs(calibrated - mean("delayed", &ArmFound::long_calibration)), 2);
}

// Textures, or the pictures of --data, in a convolutional supernet: the direction only.
void show_pictures(const ProofOptions& options, Findings& findings, base::Log& log) {
  if (!options.full)
    return findings.skip("5. pictures in a convolutional supernet: delayed above early shrinking", "takes 15 minutes: --full");
  std::map<std::string, ArmFound> found;
  const base::Recipe recipe = small_pictures(options, {"optim.learning_rate=0.1", "eval.samples=1000", "images.crop=1"});
  double work = 0;
  on_one_rank(recipe, [&](train::Job& job) { work = work_of_shrinking(train::subnet_space(job), 4); });
  for (const ShrinkArm& arm : shrink_arms()) {
    if (arm.name == "no ramp") continue;
    const auto steps = static_cast<int64_t>(1200 / (arm.begins + (1 - arm.begins) * work));
    found[arm.name] = run_arm(with(recipe, arm.sets), arm, steps);
    log.info("pictures, {}: {} steps, whole {:.1f}, smallest {:.1f}, mean {:.1f}", arm.name, steps, found[arm.name].largest,
             found[arm.name].smallest, found[arm.name].mean);
  }
  findings.at_least("5. pictures in a convolutional supernet: mean subnet, delayed above early shrinking, points", found["early"].mean,
                    found["delayed"].mean - found["early"].mean, 0);
}

// Pictures of 64 x 64 pixels and a space of five stages, as the publication's networks have them, on a GPU.
base::Recipe large_pictures(const ProofOptions& options) {
  return small_pictures(options, {"images.size=64", "images.count=40000", "images.held_out=4000", "images.crop=4", "images.classes=16",
                                  "model.cnn.widths=[24, 32, 48, 64, 96]", "model.cnn.depths=[4, 4, 4, 4, 4]", "model.cnn.expand=6",
                                  "supernet.depth=[2, 3, 4]", "supernet.expand=[3, 4, 6]", "train.global_batch=256", "eval.samples=4000",
                                  "optim.learning_rate=0.16"});
}

}  // namespace

void prove_deps_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const base::Recipe recipe = large_pictures(options);
  ArmResults results;
  double work = 0;
  on_one_rank(
      recipe, [&](train::Job& job) { work = work_of_shrinking(train::subnet_space(job), 4); }, "cuda");
  for (const ShrinkArm& arm : shrink_arms()) {
    if (arm.name == "no ramp") continue;
    const auto steps = static_cast<int64_t>(600 / (arm.begins + (1 - arm.begins) * work));
    const ArmFound found = run_arm(with(recipe, arm.sets), arm, steps, "cuda");
    log.info("{}: {} steps, {:.1f} GPU-seconds, whole {:.1f}, smallest {:.1f}, mean {:.1f}", arm.name, steps, found.seconds, found.largest,
             found.smallest, found.mean);
    results[arm.name].push_back(found);
  }
  draw_front(options, results);
  const auto mean = [&](const char* arm) { return results.at(arm).front().mean; };
  findings.at_least("H200, 64 x 64 pictures: mean subnet, delayed above early shrinking at the same work, points", mean("early"),
                    mean("delayed") - mean("early"), 0);
  findings.at_most("H200: GPU-seconds of delayed shrinking, of early shrinking at the same work", results.at("early").front().seconds,
                   results.at("delayed").front().seconds / results.at("early").front().seconds, 1.1);
}

void prove_deps(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_deps_exactly(options, findings, log);
  double cost = 0;
  const ArmResults results = run_arms(options, cost, log);
  judge_arms(results, cost, findings);
  draw_front(options, results);
  show_pictures(options, findings, log);
}

}  // namespace cairn::study
