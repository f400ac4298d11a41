// SeTa and InfoBatch: samples left out by their losses. Saved passes and accuracy against the full data and a fixed part; unbiased sums;
// the window; the same lists on any layout, and bitwise the same training after kills.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "data/sampler.h"
#include "proofs/layout_run.h"
#include "proofs/sampler_runs.h"
#include "study/claims.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int kScoredSeeds = 3;
constexpr int64_t kScoredTextBytes = 5000;

data::SamplerFacts scored_facts(int64_t samples, int64_t batch, double epochs, uint64_t seed) {
  return {.from = {0, samples}, .global_batch = batch, .seed = seed, .epochs = epochs};
}

// Artificial losses i / N: the window slides by one group per epoch.
void seta_window(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kSamples = 1000, kGroups = 10;
  data::SamplerFacts facts = scored_facts(kSamples, 10, 12, options.seed);
  facts.options.stop_at = 1;
  const auto sampler = data::make_sampler("seta", facts);
  std::vector<int64_t> ids(kSamples);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> losses;
  for (const int64_t id : ids) losses.push_back(static_cast<float>(id) / kSamples);
  const std::vector<std::pair<int64_t, int64_t>> expected{{0, 9}, {1, 5}, {2, 6}, {3, 7}, {4, 8}, {5, 9}, {0, 4}, {1, 5}, {2, 6}};
  double wrong = 0;
  for (size_t epoch = 0, step = 0; epoch < expected.size(); ++epoch) {
    std::set<int64_t> groups;
    for (; static_cast<int64_t>(step) < sampler->known(); ++step)
      for (const int64_t id : sampler->draw(static_cast<int64_t>(step)).ids) groups.insert(id * kGroups / kSamples);
    const auto& [first, last] = expected[epoch];
    wrong += *groups.begin() != first || *groups.rbegin() != last || static_cast<int64_t>(groups.size()) != last - first + 1;
    sampler->feedback({ids, losses});
    sampler->advance();
  }
  findings.at_most("1. seta, 10 groups, window 0.5, losses i/N: epochs with other groups than all, 1-5, 2-6, ... 5-9, 0-4, 1-5, 2-6", 0,
                   wrong, 0);
}

// Fixed losses and fixed gradients of the samples: the mean of the weighted sum over 2,000 choices.
void infobatch_unbiased(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kSamples = 400, kDims = 16, kTrials = 2000;
  const base::Random random = base::Random(options.seed).for_purpose("gradients");
  const auto gradient = [&](int64_t id, int64_t dim) { return 1 + random.normal(static_cast<uint64_t>(id * kDims + dim)); };
  std::vector<int64_t> ids(kSamples);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> losses;
  for (const int64_t id : ids) losses.push_back(std::exp(random.for_name("loss").normal(static_cast<uint64_t>(id))));
  std::vector<double> full(kDims), sums(kDims), squares(kDims);
  for (const int64_t id : ids)
    for (int64_t d = 0; d < kDims; ++d) full[static_cast<size_t>(d)] += static_cast<double>(gradient(id, d));
  for (int64_t trial = 0; trial < kTrials; ++trial) {
    data::SamplerFacts facts = scored_facts(kSamples, 1, 3, base::Random(options.seed).bits32(static_cast<uint64_t>(trial)));
    facts.options.stop_at = 1;
    const auto sampler = data::make_sampler("infobatch", facts);
    sampler->feedback({ids, losses});
    sampler->advance();
    std::vector<double> sum(kDims);
    for (int64_t step = kSamples; step < sampler->known(); ++step) {
      const data::Draw draw = sampler->draw(step);
      for (int64_t d = 0; d < kDims; ++d)
        sum[static_cast<size_t>(d)] += static_cast<double>(draw.weights[0]) * static_cast<double>(gradient(draw.ids[0], d));
    }
    for (size_t d = 0; d < sum.size(); ++d) sums[d] += sum[d], squares[d] += sum[d] * sum[d];
  }
  double errors = 0, relative = 0;
  for (size_t d = 0; d < full.size(); ++d) {
    const double mean = sums[d] / kTrials, deviation = std::sqrt(squares[d] / kTrials - mean * mean);
    errors = std::max(errors, std::abs(mean - full[d]) / (deviation / std::sqrt(kTrials)));
    relative = std::max(relative, std::abs(mean / full[d] - 1));
  }
  findings.at_most("2. infobatch, 2,000 choices: largest distance of a mean weighted gradient sum from the full one, standard errors", 0,
                   errors, 4);
  findings.at_most("2. the same as a share of the full sum", 0, relative, 0.01);
}

base::Recipe scored_decoder(const ProofOptions& options, const std::string& sampler) {
  return sampler_decoder(options, kScoredTextBytes,
                         {"train.epochs=5", "data.sampler=" + sampler, "sampler.groups=5", "sampler.flush_steps=7"});
}

// Steps that other layouts drew by one run's scores, and those of them whose samples are not that run's.
struct GivenScores {
  double steps = 0, differ = 0;
};

// All layouts are given the scores of one run: in snapshots at the end of each epoch, so that they choose the next one by themselves, and
// within the third. `epochs`: how many are compared, after the first.
GivenScores compare_given_scores(const base::Recipe& recipe, const fs::path& folder, size_t epochs) {
  const SampledRun alone = train_sampled(with(recipe, {"snapshot.every=1", "snapshot.keep=9999"}), folder / "given");
  GivenScores found;
  for (const SamplerLayout& layout : sampler_layouts())
    for (size_t epoch = 1; epoch < std::min(alone.epoch_steps.size(), epochs + 1); ++epoch) {
      const int64_t begins = alone.epoch_steps[epoch] - 1, within = epoch == 2 ? 5 : 0;
      const int64_t ends = epoch + 1 < alone.epoch_steps.size() ? alone.epoch_steps[epoch + 1] - 1 : alone.steps();
      const fs::path out = folder / fmt::format("{} {}", layout.name, epoch);
      copy_run_at(folder / "given", out, begins + within);
      const SampledRun rest = train_sampled(with(recipe, layout.sets), out, layout.ranks, /*resume=*/true);
      found.differ += steps_differing(rest.samples, alone.samples, static_cast<size_t>(begins + within), static_cast<size_t>(ends));
      found.steps += static_cast<double>(ends - begins - within);
    }
  fs::remove_all(folder);
  return found;
}

// 3. The same lists in every layout, in every packing that scores work with, and for adapters on chats.
void scored_layouts(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder = fs::path(options.scratch) / "layouts";
  const base::Recipe chats = sampled_chats(options, folder / "chats");
  GivenScores all, others;
  for (const std::string name : {"seta", "infobatch"}) {
    const GivenScores found = compare_given_scores(scored_decoder(options, name), folder / name, /*epochs=*/4);
    all.steps += found.steps, all.differ += found.differ;
    log.info("{}, given one run's scores: {:.0f} steps compared, {:.0f} with other samples", name, found.steps, found.differ);
    const Assignments sets{"train.epochs=3", "data.sampler=" + name, "sampler.groups=5", "sampler.flush_steps=7"};
    std::vector<std::pair<std::string, base::Recipe>> recipes;
    for (const std::string packing : {"separate", "documents", "none"})
      recipes.emplace_back(packing, with(sampler_decoder(options, packing == "none" ? 4 * kScoredTextBytes : kScoredTextBytes, sets),
                                         {"data.packing=" + packing}));
    for (const std::string packing : {"documents", "none"})
      recipes.emplace_back("chats in " + packing, with(with(chats, sets), {"data.packing=" + packing}));
    for (const auto& [what, recipe] : recipes) {
      const GivenScores one = compare_given_scores(recipe, folder / (name + " " + what), /*epochs=*/1);
      others.steps += one.steps, others.differ += one.differ;
      log.info("{}, {}: {:.0f} steps compared, {:.0f} with other samples", name, what, one.steps, one.differ);
    }
  }
  findings.at_least("3. steps of epochs 2 to 5 of seta and infobatch in 6 layouts (dp, ZeRO 3, pp, tp, cp), given one run's scores", 0,
                    all.steps, 500);
  findings.at_most("3. of these, steps whose samples are not those of that run", 0, all.differ, 0);
  findings.at_least("3. steps of epoch 2 in the three other packings, and of LoRA on chats in two, in 6 layouts, likewise", 0, others.steps,
                    500);
  findings.at_most("3. of these other packings and adapters, steps whose samples are not those of that run", 0, others.differ, 0);
  findings.skip("3. data.packing = sequences", "refused: its step plans keep no losses of single samples");
}

// 4. What a kill leaves behind goes on in the same layout, bitwise. Here the ranks are threads; scored_kills has processes.
void scored_resumes(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder = fs::path(options.scratch) / "resumes";
  double differ = 0, steps = 0;
  for (const std::string name : {"seta", "infobatch"})
    for (const SamplerLayout& layout : sampler_layouts()) {
      const base::Recipe recipe = with(scored_decoder(options, name), layout.sets);
      const fs::path out = folder / fmt::format("{} {}", name, layout.name);
      const SampledRun whole = train_sampled(with(recipe, {"snapshot.every=13", "snapshot.keep=9999"}), out, layout.ranks);
      const int64_t after = whole.steps() / 2 / 13 * 13;
      const fs::path rest = folder / fmt::format("{} {} resumed", name, layout.name);
      copy_run_at(out, rest, after);
      const SampledRun found =
          train_sampled(with(recipe, {"snapshot.every=13", "snapshot.keep=9999"}), rest, layout.ranks, /*resume=*/true);
      differ += steps_differing(found.samples, whole.samples) + (found.losses == whole.losses ? 0 : 1);
      steps += static_cast<double>(whole.steps() - after);
      log.info("{}, {}: {} steps, resumed after {}", name, layout.name, whole.steps(), after);
    }
  findings.at_least("4. steps after a snapshot within an epoch, in 6 layouts", 0, steps, 500);
  findings.at_most("4. of these, steps with other samples, and runs with another loss, than where nothing was killed", 0, differ, 0);
}

// 1, 2 and 4 ranks and a pipeline: five epochs of points, each given the state of one rank at its beginning. With scores of their own they
// may part later: sums of another order move a loss across the border of two groups. That is reported.
void scored_points_on_ranks(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder = fs::path(options.scratch) / "few";
  write_teacher_points({.folder = folder, .training = 1280, .test = 100, .seed = options.seed});
  const base::Recipe recipe = points_recipe(folder, options.seed,
                                            {"data.sampler=seta", "sampler.groups=5", "sampler.window=0.8", "train.epochs=5",
                                             "optim.learning_rate=0.02", "snapshot.every=1", "snapshot.keep=9999", "snapshot.last=true"});
  const fs::path one = folder / "one";
  const SampledRun alone = train_sampled(recipe, one);
  const auto parameters_at = [](const fs::path& run, const fs::path& copy, int64_t step) {
    copy_run_at(run, copy, step);
    return snapshot_tensors(copy, "model");
  };
  std::vector<int64_t> ends;  // of epochs
  for (size_t epoch = 1; epoch < alone.epoch_steps.size(); ++epoch) ends.push_back(alone.epoch_steps[epoch] - 1);
  ends.push_back(alone.steps());
  double apart = 0, differ = 0;
  for (const auto& [name, ranks, sets] : {std::tuple("2 ranks", 2, Assignments{}), std::tuple("4 ranks", 4, Assignments{}),
                                          std::tuple("2 stages", 2, Assignments{"mesh.pp=2"})}) {
    int64_t own = 0;
    for (size_t epoch = 0; epoch < ends.size(); ++epoch) {
      const int64_t begin = epoch == 0 ? 0 : ends[epoch - 1], end = ends[epoch];
      const fs::path out = folder / fmt::format("{} {}", name, epoch);
      if (epoch > 0) copy_run_at(one, out, begin);
      const SampledRun run = train_sampled(with(recipe, sets), out, ranks, /*resume=*/epoch > 0);
      if (epoch == 0) own = static_cast<int64_t>(steps_differing(run.samples, alone.samples));
      differ += steps_differing(run.samples, alone.samples, static_cast<size_t>(begin), static_cast<size_t>(end));
      apart = std::max(apart, largest_difference(parameters_at(out, out.string() + " end", end),
                                                 parameters_at(one, folder / fmt::format("one {} {}", name, end), end)));
    }
    log.info("seta on {}: parameters within {:.1e}; with its own scores, {} of {} steps have other samples", name, apart, own,
             alone.steps());
  }
  findings.at_most("3. five epochs on 2 and 4 ranks and 2 stages, each given one rank's scores: steps whose samples differ", 0, differ, 0);
  findings.at_most("3. likewise: largest difference of a parameter at the end of an epoch", 0, apart, 1e-5);
}

// kill -9 within epochs, and on with as many ranks: samples, losses and rates are bitwise those of a run that nobody killed.
void scored_kills(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr const char* kClaim =
      "4. these, resumed: steps with other samples, and runs with another loss or rate, than where nothing was killed";
  if (options.program.empty()) return findings.skip(kClaim, "no program to start");
  const fs::path folder(options.scratch);
  double differ = 0, killed = 0;
  for (const auto& [name, layout] :
       {std::pair("seta", size_t{0}), std::pair("seta", size_t{1}), std::pair("seta", size_t{3}), std::pair("infobatch", size_t{2}),
        std::pair("infobatch", size_t{4}), std::pair("infobatch", size_t{5})}) {
    const SamplerLayout& on = sampler_layouts()[layout];
    Assignments sets{"model.layers=2",
                     "model.embed=16",
                     "model.heads=2",
                     "model.mlp=24",
                     "data.tokenizer=bytes",
                     "data.length=16",
                     std::string("data.sampler=") + name,
                     "sampler.groups=5",
                     "sampler.flush_steps=7",
                     "train.steps=0",
                     "train.epochs=5",
                     "train.global_batch=8",
                     "log.tensorboard=false",
                     "log.trace=false",
                     "log.samples=0",
                     "eval.every=0",
                     "eval.samples=4",
                     "snapshot.every=5",
                     "snapshot.keep=999",
                     fmt::format("train.seed={}", options.seed)};
    for (const std::string& text : sampler_texts(options, 8'000)) sets.push_back(text);
    sets.insert(sets.end(), on.sets.begin(), on.sets.end());
    const fs::path out = folder / fmt::format("{} on {}", name, on.name),
                   whole_out = folder / fmt::format("{} on {}, whole", name, on.name);
    run_and_kill({.program = options.program, .out = whole_out, .ranks = on.ranks, .sets = sets, .kill = false});
    const SampledRun whole = read_sampled_run(whole_out);
    for (const int64_t share : {3, 6}) {
      const int64_t after = whole.steps() * share / 10 / 5 * 5;
      killed += run_and_kill({.program = options.program, .out = out, .ranks = on.ranks, .sets = sets, .after_step = after});
    }
    run_and_kill({.program = options.program, .out = out, .ranks = on.ranks, .sets = sets, .kill = false});
    const SampledRun found = read_sampled_run(out);
    differ += steps_differing(found.samples, whole.samples);
    differ += found.losses == whole.losses && found.rates == whole.rates ? 0 : 1;
    log.info("{} as processes, {}: {} steps in 5 epochs", name, on.name, whole.steps());
  }
  findings.at_least("4. processes killed by SIGKILL (1 rank; dp = 2; pp = 2, dp = 2; ZeRO 3; tp = 2; cp = 2)", 0, killed, 9);
  findings.at_most(kClaim, 0, differ, 0);
}

struct ScoredTrial {
  std::string name;
  Assignments sets;
};

std::map<std::string, std::vector<SampledRun>> scored_accuracy_runs(const ProofOptions& options, base::Log& log) {
  const std::vector<ScoredTrial> trials{
      {"full", {}},
      {"infobatch", {"data.sampler=infobatch"}},
      {"seta", {"data.sampler=seta", "sampler.prune=0.3", "sampler.groups=5", "sampler.window=0.8"}},
      {"fixed half", {"data.sampler=rs2", "sampler.ratio=0.5", "sampler.fixed=true"}},
      {"fixed 0.52", {"data.sampler=rs2", "sampler.ratio=0.52", "sampler.fixed=true"}},
  };
  const fs::path folder(options.scratch);
  std::map<std::string, std::vector<SampledRun>> found;
  for (const ScoredTrial& trial : trials) found[trial.name].resize(kScoredSeeds);
  in_parallel(static_cast<int64_t>(trials.size()) * kScoredSeeds, [&](int64_t job) {
    const ScoredTrial& trial = trials[static_cast<size_t>(job) / kScoredSeeds];
    const auto seed = static_cast<size_t>(job) % kScoredSeeds;
    const base::Recipe recipe = points_recipe(folder / fmt::format("points-{}", seed), options.seed + seed, {"train.epochs=40"});
    found.at(trial.name)[seed] = train_sampled(with(recipe, trial.sets), folder / fmt::format("{} of {}", trial.name, seed));
  });
  for (const ScoredTrial& trial : trials)
    for (const SampledRun& run : found.at(trial.name))
      log.info("{}: {} steps, accuracy {:.3f}", trial.name, run.steps(), run.last_accuracy());
  return found;
}

void draw_seta_epochs(const ProofOptions& options, const SampledRun& run) {
  CurvesPicture picture{.title = "16,000 points under seta", .across = "epoch", .up = "share of the samples"};
  for (const auto& [name, label] : {std::pair("kept_share", "kept in this epoch"), std::pair("kept_share_so_far", "kept so far")}) {
    Curve curve{label, curve_colour(picture.curves.size()), {}};
    for (const double share : run.sampler.at(name)) curve.points.emplace_back(static_cast<double>(curve.points.size()), share);
    picture.curves.push_back(std::move(curve));
  }
  write_curves(options.pictures, "seta-epochs", picture);
}

// Passes saved and accuracy lost, on noisy labels.
void scored_accuracy(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto runs = scored_accuracy_runs(options, log);
  double seta_saved = 1, seta_loss = 0, fixed_loss = 0, seta_gain = 0, more = -1, info_least = 1, info_most = 0, info_loss = 0;
  for (size_t seed = 0; seed < kScoredSeeds; ++seed) {
    const auto of = [&](const std::string& name) { return runs.at(name)[seed].last_accuracy() / kScoredSeeds; };  // its part of the mean
    const auto saved = [&](const std::string& name) {
      return 1 - static_cast<double>(runs.at(name)[seed].steps()) / static_cast<double>(runs.at("full")[seed].steps());
    };
    seta_saved = std::min(seta_saved, saved("seta"));
    seta_loss += of("full") - of("seta");
    fixed_loss += of("full") - of("fixed half");
    seta_gain += of("seta") - of("fixed 0.52");
    more = std::max(more, saved("fixed 0.52") - saved("seta"));
    info_least = std::min(info_least, saved("infobatch")), info_most = std::max(info_most, saved("infobatch"));
    info_loss += of("full") - of("infobatch");
  }
  findings.at_least("5. seta (prune 0.3, 5 groups, window 0.8), 40 epochs: passes saved, least of 3 seeds", 0, seta_saved, 0.48);
  findings.at_most("5. seta: accuracy below the full run, mean of 3 seeds", 0, seta_loss, 0.015);
  findings.at_least("5. a fixed half of the samples: accuracy below the full run, mean of 3 seeds", 0, fixed_loss, 0.04);
  findings.at_least("5. seta: accuracy above fixed 0.52 of the samples, mean of 3 seeds", 0, seta_gain, 0.04);
  findings.at_most("5. seta: passes more than these, as a share of the full run, most of 3 seeds", 0, more, 0);
  findings.at_least("5. infobatch (prune 0.5): passes saved, least of 3 seeds", 0, info_least, 0.28);
  findings.at_most("5. infobatch: passes saved, most of 3 seeds", 1, info_most, 0.40);
  findings.at_most("5. infobatch: accuracy below the full run, mean of 3 seeds", 0, info_loss, 0.03);
  draw_seta_epochs(options, runs.at("seta")[0]);
}

// Ten million samples: what an epoch's choice costs.
void seta_selection_time(Findings& findings, base::Log& log, int64_t samples, bool on_large_machine) {
  constexpr int64_t kBatch = 1000;
  const auto sampler = data::make_sampler("seta", scored_facts(samples, kBatch, 4, 1));
  const base::Random random(7);
  data::SampleFeedback found;
  for (int64_t id = 0; id < samples; ++id)
    found.ids.push_back(id), found.losses.push_back(static_cast<float>(-std::log(random.uniform(static_cast<uint64_t>(id)) + 1e-9)));
  sampler->feedback(found);
  const base::RealClock clock;
  const auto begun = clock.now();
  sampler->advance();
  const double seconds = base::seconds(clock.now() - begun);
  log.info("seta: {} samples, chosen in {:.3f} s", samples, seconds);
  if (on_large_machine) findings.at_most("6. seta, 10 million losses: seconds to choose an epoch", 0, seconds, 1);
}

}  // namespace

void prove_seta(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder(options.scratch);
  sampler_texts(options, kScoredTextBytes);  // refuses --data that is too short
  for (uint64_t seed = 0; seed < kScoredSeeds; ++seed)
    write_teacher_points(
        {.folder = folder / fmt::format("points-{}", seed), .training = 16'000, .flipped = 0.05, .seed = options.seed + seed});
  seta_window(options, findings);
  infobatch_unbiased(options, findings);
  scored_layouts(options, findings, log);
  scored_points_on_ranks(options, findings, log);
  scored_resumes(options, findings, log);
  scored_kills(options, findings, log);
  seta_selection_time(findings, log, 2'000'000, /*on_large_machine=*/false);
  scored_accuracy(options, findings, log);
}

void prove_seta_on_gpu(const ProofOptions&, Findings& findings, base::Log& log) {
  seta_selection_time(findings, log, 10'000'000, /*on_large_machine=*/true);
}

}  // namespace cairn::study
