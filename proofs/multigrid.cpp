// Multigrid training: clips whose shape changes from step to step at equal cost, on a schedule that ends at the full shape. Everything runs
// through the trainer; the clips are generated (a textured blob that drifts over noise).
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "data/sampler.h"
#include "data/samples/multigrid_schedule.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "model/classifier/batch_norm_block.h"
#include "proofs/data_pictures.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/precise_norm.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::study {
namespace {

// Clips of 16 frames of 32 x 32, or of 16 x 16 with `small`.
base::Recipe clips_recipe(const ProofOptions& options, const Assignments& sets, bool small = false) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    kind = "cnn3d"
    layers = 4
    embed = 16
    [data]
    kind = "clips"
    sampler = "multigrid"
    [train]
    global_batch = 16
    [optim]
    kind = "sgd"
    learning_rate = 0.02
    momentum = 0.9
    weight_decay = 0.0001
    decay_decoupled = false
    schedule = "constant"
    warmup_steps = 0
    max_grad_norm = 0
    [eval]
    every = 0
    samples = 1000
    [snapshot]
    every = 0
    [log]
    tensorboard = false
    trace = false
  )",
                                            "proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  if (small)
    recipe = with(std::move(recipe),
                  {"model.layers=3", "model.embed=4", "clips.size=16", "clips.classes=4", "clips.count=260", "clips.held_out=40",
                   "train.global_batch=8", "train.epochs=4", "sampler.precise_norm_batches=4", "optim.learning_rate=0.005"});
  return with(std::move(recipe), sets);
}

const Assignments kPlain{"sampler.long_cycle=false", "sampler.short_cycle=false", "sampler.epoch_factor=1",
                         "sampler.precise_norm_batches=50", "sampler.evaluations_per_shape=1"};

struct ClipsRun {
  std::vector<double> losses, rates, seconds, waits, frames, size, clips;  // of each step
  std::vector<double> accuracy;                                            // of each evaluation
  double total_seconds() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
  double total_waits() const { return std::accumulate(waits.begin(), waits.end(), 0.0); }
};

ClipsRun train_clips(const base::Recipe& recipe, const std::filesystem::path& out) {
  train_layout({.recipe = recipe, .out = out});
  ClipsRun run;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
    run.losses.push_back(row.number("loss"));
    run.rates.push_back(row.number("lr"));
    run.seconds.push_back(row.number("step_seconds"));
    run.waits.push_back(row.number("data_wait_seconds"));
    if (row.has("frames")) run.frames.push_back(row.number("frames"));
    if (row.has("frames")) run.size.push_back(row.number("size"));
    if (row.has("frames")) run.clips.push_back(row.number("clips"));
    if (row.has("eval_accuracy")) run.accuracy.push_back(row.number("eval_accuracy"));
  }
  return run;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median seconds of a step without the wait for its batch, by shape.
std::map<std::array<double, 3>, double> seconds_by_shape(const ClipsRun& run) {
  std::map<std::array<double, 3>, std::vector<double>> all;
  for (size_t i = 1; i < run.frames.size(); ++i)  // the first step allocates
    all[{run.frames[i], run.size[i], run.clips[i]}].push_back(run.seconds[i] - run.waits[i]);
  std::map<std::array<double, 3>, double> medians;
  for (auto& [shape, seconds] : all) medians[shape] = median(std::move(seconds));
  return medians;
}

data::SamplerOptions at_stages(std::vector<double> stages) {
  data::SamplerOptions options;
  options.stages = std::move(stages);
  return options;
}

double differences(const std::vector<data::GridPhase>& phases, const std::vector<int64_t>& ends) {
  double count = std::abs(static_cast<double>(phases.size()) - static_cast<double>(ends.size()));
  for (size_t i = 0; i < std::min(phases.size(), ends.size()); ++i) count += phases[i].end_epoch != ends[i];
  return count;
}

// 1. The published schedule of Kinetics-400: 32 frames of 224 x 224, 239 epochs.
void arithmetic(Findings& findings) {
  data::GridFacts facts{.frames = 32, .size = 224, .epochs = 239, .options = at_stages({94, 154, 196})};
  const std::vector<data::GridPhase> phases = data::multigrid_schedule(facts);
  findings.at_most("1. long and short cycle: ends of the 13 phases that differ from the published ones", 0,
                   differences(phases, {73, 110, 142, 158, 205, 228, 248, 259, 291, 308, 322, 329, 358}), 0);
  const data::GridShape shapes[] = {{8, 158, 8}, {16, 158, 4}, {16, 224, 2}, {32, 224, 1}};
  const int64_t factors[4][3] = {{16, 8, 8}, {8, 4, 4}, {8, 4, 2}, {4, 2, 1}};
  double wrong = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const size_t shape = i == 12 ? 3 : i % 4;
    wrong += phases[i].base != shapes[shape];
    for (size_t c = 0; c < 3; ++c) wrong += phases[i].cycle[c].batch_factor != factors[shape][c];
    const double rate = std::pow(0.1, i == 12 ? 2.0 : static_cast<double>(i / 4)) * static_cast<double>(shapes[shape].batch_factor);
    wrong += std::abs(phases[i].rate_factor - rate) > 1e-12;
  }
  wrong += std::abs(phases[12].rate_factor_at(342) - 0.01) > 1e-12;
  wrong += std::abs(phases[12].rate_factor_at(343) - 0.001) > 1e-12;
  findings.at_most("1. their shapes, batches and rates that differ", 0, wrong, 0);
  facts.options.long_cycle = false;
  findings.at_most("1. short cycle alone: ends of stages that are not 1.5 times those of the recipe", 0,
                   differences(data::multigrid_schedule(facts), {141, 231, 294, 358}), 0);
  facts.options = at_stages({94, 154, 196});
  facts.options.short_cycle = false;
  const std::vector<data::GridPhase> alone = data::multigrid_schedule(facts);
  // Batches 8, 4, 2, 1: a stage's steps fall to 4/15, and fine-tuning takes 43 * 4/15 epochs of the full shape.
  const double stretch = 1.5 * 239 / (196 + 43 * 4 / 15.0);
  std::vector<int64_t> ends;
  double done = 0;
  for (const double stage : {94.0, 60.0, 42.0})
    for (const double batch : {8.0, 4.0, 2.0, 1.0})
      ends.push_back(static_cast<int64_t>(std::nearbyint(done += stage * stretch * batch / 15)));
  ends.push_back(358);
  findings.at_most("1. long cycle alone: ends of phases that differ", 0, differences(alone, ends), 0);
}

// 2. The same work in every step; and 1., fewer steps for the same epochs.
void equal_work(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path folder = options.scratch;
  const Assignments few{"clips.count=1024", "clips.held_out=200", "train.epochs=6", "sampler.precise_norm_batches=10"};
  const ClipsRun grid = train_clips(clips_recipe(options, few), folder / "grid");
  const ClipsRun plain = train_clips(with(clips_recipe(options, few), kPlain), folder / "plain");
  const std::map<std::array<double, 3>, double> grid_seconds = seconds_by_shape(grid);
  const double full = seconds_by_shape(plain).at({16, 32, 16});
  double least = INFINITY, most = 0;
  for (const auto& [shape, seconds] : grid_seconds) {
    log.info("{} clips of {} frames of {} x {}: {:.1f} ms a step, {:.2f} of the full shape", shape[2], shape[0], shape[1], shape[1],
             1e3 * seconds, seconds / full);
    least = std::min(least, seconds / full), most = std::max(most, seconds / full);
  }
  // Of 4 long and 3 short shapes, 8 differ: 2 of 4 frames, 3 of 8 in two stages of the long cycle, 3 of 16.
  findings.at_most("2. shapes of batches (frames, size, clips) that were timed: off 8", 8,
                   std::abs(static_cast<double>(grid_seconds.size()) - 8), 0);
  findings.at_least("2. seconds of a step to those at the full shape: least of all shapes", 1, least, 0.65);
  findings.at_most("2. likewise, most", 1, most, 1.35);
  const ClipsRun unscaled =
      train_clips(clips_recipe(options, {"data.sampler=shuffled", "train.steps=12", "clips.frames=4", "clips.size=16", "clips.count=1024"}),
                  folder / "unscaled");
  std::vector<double> seconds;
  for (size_t i = 1; i < unscaled.seconds.size(); ++i) seconds.push_back(unscaled.seconds[i] - unscaled.waits[i]);
  findings.at_most("2. a batch that is not scaled, 16 clips of 4 frames of 16 x 16: seconds to those of the full shape", 1,
                   median(seconds) / full, 0.65);
  findings.at_least("2. 6 epochs of 1024 clips: steps of the baseline to steps of multigrid (which has 9 epochs)", 1,
                    static_cast<double>(plain.losses.size()) / static_cast<double>(grid.losses.size()), 3.3);
  findings.at_most("2. likewise: seconds of multigrid's steps to the baseline's, with loading", plain.total_seconds(),
                   grid.total_seconds() / plain.total_seconds(), 0.5);
  findings.at_most("2. likewise: share of multigrid's seconds spent waiting for clips", plain.total_waits() / plain.total_seconds(),
                   grid.total_waits() / grid.total_seconds(), 0.25);
  log.info("accuracy after 6 epochs: baseline {:.3f} in {:.1f} s, multigrid {:.3f} in {:.1f} s", plain.accuracy.back(),
           plain.total_seconds(), grid.accuracy.back(), grid.total_seconds());
}

class GainAndShift final : public model::Weights {
 public:
  explicit GainAndShift(int64_t channels, const base::Random& random) {
    for (at::Tensor* one : {&gain_, &shift_}) {
      *one = at::empty({channels}, at::kFloat);
      random.for_index(one == &gain_).fill_normal({one->mutable_data_ptr<float>(), static_cast<size_t>(channels)});
    }
  }
  at::Tensor get(mesh::ParamId id) const override { return id.first == 0 ? gain_ : shift_; }

 private:
  at::Tensor gain_, shift_;
};

// 5. Groups of one batch norm against calls for each group alone, in fp32.
void batch_norm(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kChannels = 16, kGroup = 8;
  const base::Random random = base::Random(options.seed).for_purpose("batch norm");
  const auto block =
      model::make_batch_norm_block({.name = "n", .reads = "x", .writes = "y", .gain = {0}, .shift = {1}, .channels = kChannels});
  const GainAndShift weights(kChannels, random);
  const mesh::Axes axes;
  const auto run = [&](const at::Tensor& x, int64_t norm_samples, model::Buffers& buffers) {
    model::add_batch_norm_buffers(buffers, "n", kChannels, at::TensorOptions().dtype(at::kFloat));
    model::Values values, gradients;
    values.put("x", x);
    model::Saved saved;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = axes, .norm_samples = norm_samples};
    block->forward(values, &saved, call);
    const at::Tensor y = values.get("y").clone();
    gradients.put("y", at::cos(3 * y));
    block->backward_input(gradients, saved, call);
    model::commit_batch_norms(
        buffers, false, [](const at::Tensor&) {}, /*momentum=*/1);
    return at::stack({y, gradients.get("x")});
  };
  double apart = 0, aggregate = 0;
  for (const int64_t groups : {1, 2, 4, 16}) {
    at::Tensor x = at::empty({groups * kGroup, kChannels, 4, 6, 6}, at::kFloat);
    random.for_index(static_cast<uint64_t>(groups)).fill_normal({x.mutable_data_ptr<float>(), static_cast<size_t>(x.numel())});
    x = x * 2 + at::arange(groups * kGroup, at::kFloat).view({-1, 1, 1, 1, 1}) / 16;
    model::Buffers together;
    const at::Tensor found = run(x, kGroup, together);
    at::Tensor means = at::zeros({groups, kChannels}, at::kDouble), variances = at::zeros({groups, kChannels}, at::kDouble);
    for (int64_t g = 0; g < groups; ++g) {
      model::Buffers alone;
      const at::Tensor own = run(x.narrow(0, g * kGroup, kGroup), 0, alone);
      apart = std::max(apart, (found.narrow(1, g * kGroup, kGroup) - own).abs().max().item<double>());
      means[g].copy_(alone.at("n.running_mean"));
      variances[g].copy_(alone.at("n.running_var"));
    }
    const at::Tensor mean = means.mean(0), variance = variances.mean(0) + (means - mean).square().mean(0);
    const at::Tensor pooled = x.to(at::kDouble).transpose(0, 1).reshape({kChannels, -1});
    for (const at::Tensor& of : {mean, pooled.mean(1)})
      aggregate = std::max(aggregate, (together.at("n.running_mean").to(at::kDouble) - of).abs().max().item<double>());
    for (const at::Tensor& of : {variance, pooled.var(1, /*unbiased=*/false)})
      aggregate = std::max(aggregate, ((together.at("n.running_var").to(at::kDouble) - of) / of).abs().max().item<double>());
  }
  findings.at_most("5. batch norm in 1 to 16 groups against a call for each: largest difference of outputs and input gradients", 0, apart,
                   1e-6);
  findings.at_most("5. running statistics against the aggregate of the groups, and against all samples pooled: largest difference", 0,
                   aggregate, 1e-6);
}

// 5. A group of 8 clips lies on one rank, on two, or on four.
void ranks(const ProofOptions& options, Findings& findings) {
  const std::filesystem::path folder = options.scratch;
  const base::Recipe recipe = clips_recipe(options, {}, /*small=*/true);
  const Trained one = train_layout({.recipe = recipe, .out = folder / "rank1"});
  for (const int count : {2, 4}) {
    const Trained several = train_layout({.recipe = recipe, .ranks = count, .out = folder / fmt::format("ranks{}", count)});
    findings.at_most(fmt::format("5. {} ranks, all shapes: largest relative difference of a loss to 1 rank", count), 0,
                     largest_relative_difference(one.losses, several.losses), 1e-5);
  }
}

// 6. What a kill after some step leaves behind goes on as if nothing had happened.
void resume(const ProofOptions& options, Findings& findings) {
  const std::filesystem::path folder = options.scratch;
  const base::Recipe recipe = clips_recipe(options, {"snapshot.every=1", "snapshot.keep=100"}, /*small=*/true);
  const Trained whole = train_layout({.recipe = recipe, .out = folder / "whole"});
  for (const auto& [step, where] : {std::pair<int64_t, const char*>{4, "within the first shape, after one batch of a cycle"},
                                    {14, "within the second, after two"},
                                    {26, "within the last, after one"}}) {
    const std::filesystem::path out = folder / fmt::format("killed-{}", step);
    copy_up_to(folder / "whole", out, step);
    const Trained resumed = train_layout({.recipe = recipe, .out = out, .resume = true});
    double differ = std::abs(static_cast<double>(whole.losses.size()) - static_cast<double>(resumed.losses.size()));
    for (size_t i = 0; i < std::min(whole.losses.size(), resumed.losses.size()); ++i) differ += whole.losses[i] != resumed.losses[i];
    findings.at_most(fmt::format("6. killed after step {}, {}: losses that are not bitwise identical", step, where), 0, differ, 0);
    findings.at_most(fmt::format("6. likewise: largest difference of a parameter at the end"), 0,
                     largest_difference(whole.parameters, resumed.parameters), 0);
  }
}

void refusals(const ProofOptions& options, Findings& findings, base::Log& log) {
  double accepted = 0;
  for (const Assignments& sets :
       {Assignments{"clips.frames=18"}, {"clips.frames=8"}, {"train.epochs=1"}, {"optim.kind=adamw"}, {"sampler.norm_samples=6"}})
    try {
      train_layout({.recipe = clips_recipe(options, sets, /*small=*/true), .out = std::filesystem::path(options.scratch) / "refused"});
      ++accepted;
    } catch (const Error& error) {
      log.info("{}", error.what());
      accepted += error.kind() != Error::Kind::bad_input;
    }
  findings.at_most(
      "refused: frames that 4 does not divide, too few for the strides, fewer epochs than shapes, adamw with a scaled rate, groups that do "
      "not divide a batch: accepted",
      0, accepted, 0);
}

// 4. Trains on the coarsest shape alone for so many steps, with the falls of the rate at the same shares of the run, and evaluates at the
// full shape. No recipe asks for this: a long run is left within its first shape.
double coarse_accuracy(const ProofOptions& options, const Assignments& sets, int64_t steps, const std::filesystem::path& out) {
  double accuracy = 0;
  const base::Recipe recipe =
      with(clips_recipe(options, sets), {"train.epochs=400", "sampler.stages=[396,398]", "sampler.evaluations_per_shape=1000"});
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         train::Start start;
         start.out = out;
         const std::unique_ptr<train::Job> job = train::build(world, recipe, start, {});
         const double rate = job->schedule.highest;
         while (job->progress.steps_done < steps || !job->sampler->evaluates_after(job->progress.steps_done)) {
           const double done = static_cast<double>(job->progress.steps_done) / static_cast<double>(steps);
           job->schedule.highest = rate * (done < 0.5 ? 1 : done < 0.8 ? 0.1 : done < 0.9 ? 0.01 : 0.001);
           train::take_step(*job);
           ++job->progress.steps_done;
         }
         train::compute_precise_norms(*job);
         accuracy = train::evaluate_held_out(*job).measures.at(0);
       }))
    if (error) std::rethrow_exception(error);
  return accuracy;
}

// 3, 4. The task of the proof: 4,000 clips, 30 epochs, three seeds.
void accuracy(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Assignments task{"train.epochs=30", "sampler.stages=[15,24,27]"};
  double baseline = 0, multigrid = 0, coarse = 0, baseline_s = 0, multigrid_s = 0, waits = 0;
  constexpr int kSeeds = 3;
  for (int i = 0; i < kSeeds; ++i) {
    ProofOptions inner = options;
    inner.seed = options.seed + static_cast<uint64_t>(i);
    const std::filesystem::path folder = std::filesystem::path(options.scratch) / fmt::format("full-{}", i);
    const ClipsRun plain = train_clips(with(clips_recipe(inner, task), kPlain), folder / "plain");
    const ClipsRun grid = train_clips(clips_recipe(inner, task), folder / "grid");
    const double control = coarse_accuracy(inner, {}, static_cast<int64_t>(grid.losses.size()), folder / "coarse");
    log.info("seed {}: baseline {:.4f} in {} steps and {:.0f} s; multigrid {:.4f} in {} steps and {:.0f} s; coarse only {:.4f}", inner.seed,
             plain.accuracy.back(), plain.losses.size(), plain.total_seconds(), grid.accuracy.back(), grid.losses.size(),
             grid.total_seconds(), control);
    baseline += plain.accuracy.back() / kSeeds, multigrid += grid.accuracy.back() / kSeeds, coarse += control / kSeeds;
    baseline_s += plain.total_seconds(), multigrid_s += grid.total_seconds(), waits += grid.total_waits();
  }
  findings.at_least("3. accuracy of multigrid less that of the baseline, in points, mean of 3 seeds", 100 * baseline,
                    100 * (multigrid - baseline), -1);
  findings.at_most("3. seconds of multigrid's steps to the baseline's", baseline_s, multigrid_s / baseline_s, 0.5);
  findings.at_most("3. share of them spent waiting for clips", 0, waits / multigrid_s, 0.25);
  findings.at_least("4. accuracy of multigrid less that of the coarsest shape alone, in points", 100 * coarse, 100 * (multigrid - coarse),
                    3);
}

}  // namespace

void prove_multigrid(const ProofOptions& options, Findings& findings, base::Log& log) {
  arithmetic(findings);
  draw_multigrid_schedule(options);
  log.info("equal work");
  equal_work(options, findings, log);
  log.info("batch norm, ranks, kills");
  batch_norm(options, findings);
  ranks(options, findings);
  resume(options, findings);
  refusals(options, findings, log);
  if (options.full)
    accuracy(options, findings, log);
  else
    findings.skip("3, 4. accuracy against the baseline, and of the coarsest shape alone", "takes an hour on two cores: --full");
  for (const char* claim : {"2. H200: seconds of a step within 20 % of the full shape's",
                            "H200, clips decoded by 16 cores: wait for the loader by shape; the GPU 0.8 busy with clips made beforehand"})
    findings.skip(claim, "this proof has no part for a GPU");
}

}  // namespace cairn::study
