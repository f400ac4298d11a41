// RS2: a new random slice of the data in each round, under a schedule that covers the short run. Accuracy against a fixed subset and the
// full data; the exact order of samples on any number of ranks, after kills, and of a billion samples.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "data/sampler.h"
#include "proofs/layout_run.h"
#include "proofs/sampler_runs.h"
#include "proofs/selection_runs.h"
#include "study/claims.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int kRs2Seeds = 8, kRs2Judged = 3;  // inner seeds: in means; by the worst

data::SamplerFacts rs2_facts(int64_t samples, int64_t batch, double rounds, double ratio, uint64_t seed) {
  data::SamplerFacts facts{.from = {0, samples}, .global_batch = batch, .seed = seed, .epochs = rounds};
  facts.options.ratio = ratio;
  return facts;
}

// 1/r an integer: each sample once in 1/r rounds, and as often as any other in ten such cycles.
void rs2_cycles(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kSamples = 20'000, kRounds = 100, kPerCycle = 10;
  const auto sampler = data::make_sampler("rs2", rs2_facts(kSamples, 50, kRounds, 0.1, options.seed));
  std::vector<int64_t> counts(kSamples);
  double unequal = 0;
  for (int64_t step = 0; step < sampler->steps(); ++step) {
    for (const int64_t id : sampler->draw(step).ids) ++counts[static_cast<size_t>(id)];
    const int64_t steps_of_cycle = kPerCycle * kSamples / 10 / 50;
    if ((step + 1) % steps_of_cycle != 0) continue;
    const int64_t cycle = (step + 1) / steps_of_cycle;
    unequal += static_cast<double>(std::count_if(counts.begin(), counts.end(), [&](int64_t count) { return count != cycle; }));
  }
  findings.at_most("1. ratio 0.1, 10 cycles of 10 rounds: samples that did not come just once in a cycle", 0, unequal, 0);
}

constexpr int64_t kRs2TextBytes = 30'000;

// The order of samples of one recipe: steps whose samples are not those of one rank, in other layouts from the start, and in each layout
// after a snapshot of one rank.
struct ComparedOrders {
  double steps = 0, differ = 0, resumed = 0;
};

ComparedOrders compare_orders(const base::Recipe& recipe, const std::vector<SamplerLayout>& layouts, const fs::path& folder) {
  const SampledRun alone = train_sampled(with(recipe, {"snapshot.every=1", "snapshot.keep=9999"}), folder / "alone");
  ComparedOrders found{.steps = static_cast<double>(alone.steps())};
  for (const SamplerLayout& layout : layouts) {
    if (layout.ranks > 1)
      found.differ += steps_differing(train_sampled(with(recipe, layout.sets), folder / layout.name, layout.ranks).samples, alone.samples);
    const fs::path rest = folder / (layout.name + " resumed");
    copy_run_at(folder / "alone", rest, std::max<int64_t>(1, alone.steps() / 3));
    found.resumed += steps_differing(train_sampled(with(recipe, layout.sets), rest, layout.ranks, /*resume=*/true).samples, alone.samples);
  }
  return found;
}

// Documents of at most 60 bytes, one to a sample: data.packing = sequences cuts none.
base::Recipe rs2_sequences(const ProofOptions& options, const base::Recipe& recipe) {
  constexpr int64_t kDocuments = 300, kBytes = 60;
  const fs::path file = fs::path(options.scratch) / "sequences.jsonl";
  const std::vector<std::string> found =
      options.data.empty() ? built_in_stories(kDocuments, options.seed, kBytes) : paragraphs_of(options.data, kDocuments, kBytes, kBytes);
  std::vector<std::string> texts;
  for (size_t i = 0; i < kDocuments; ++i) texts.push_back(found[i % found.size()]);
  write_texts(file, texts);
  return with(recipe, {"data.path=" + file.string(), "data.length=64", "data.packing=sequences", "context.plan=flexsp",
                       "context.tokens_per_rank=128"});
}

// 2. The same batches in every layout, in every packing, and after a change of the layout.
void rs2_layouts(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder = fs::path(options.scratch) / "layouts";
  const base::Recipe recipe = sampler_decoder(options, kRs2TextBytes, {"data.sampler=rs2", "sampler.ratio=0.1", "train.epochs=5"});
  ComparedOrders all;
  for (const std::string packing : {"stream", "separate", "documents", "none"}) {
    const ComparedOrders one = compare_orders(with(recipe, {"data.packing=" + packing}), sampler_layouts(), folder / packing);
    all.steps += one.steps, all.differ += one.differ, all.resumed += one.resumed;
    log.info("rs2, data.packing = {}: {} steps in each of {} layouts", packing, one.steps, sampler_layouts().size());
  }
  findings.at_least("2. steps of a decoder under rs2, in four packings", 0, all.steps, 100);
  findings.at_most("2. steps whose samples are not those of one rank, in 6 layouts (dp, ZeRO 3, pp, tp, cp) of each", 0, all.differ, 0);
  findings.at_most("2. the same after a snapshot of one rank, resumed in each layout", 0, all.resumed, 0);
  std::vector<SamplerLayout> planned = sampler_layouts();
  std::erase_if(planned, [](const SamplerLayout& one) { return one.name.find("pp") != std::string::npos || one.name.find("cp") == 0; });
  const ComparedOrders sequences = compare_orders(rs2_sequences(options, recipe), planned, folder / "sequences");
  findings.at_least("2. the fifth packing, sequences under context.plan = flexsp: steps", 0, sequences.steps, 10);
  findings.at_most(fmt::format("2. likewise: steps whose samples are not those of one rank, in {} layouts, also resumed", planned.size()),
                   0, sequences.differ + sequences.resumed, 0);
  findings.skip("2. sequences with mesh.pp or mesh.cp", "refused: a step plan chooses the ranks of each sequence");
}

// 2. Adapters on chats.
void rs2_adapters(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder = fs::path(options.scratch) / "adapters";
  const base::Recipe recipe = with(sampled_chats(options, folder), {"data.sampler=rs2", "sampler.ratio=0.2", "train.epochs=5"});
  ComparedOrders all;
  for (const std::string packing : {"none", "documents"}) {
    const ComparedOrders one = compare_orders(with(recipe, {"data.packing=" + packing}), sampler_layouts(), folder / packing);
    all.steps += one.steps, all.differ += one.differ, all.resumed += one.resumed;
    log.info("rs2, LoRA on chats, data.packing = {}: {} steps", packing, one.steps);
  }
  findings.at_least("2. steps of LoRA on chats under rs2, in two packings", 0, all.steps, 10);
  findings.at_most("2. steps whose samples are not those of one rank, in 6 layouts of each", 0, all.differ, 0);
  findings.at_most("2. LoRA: the same after a snapshot of one rank, resumed in each layout", 0, all.resumed, 0);
}

// 2. Parameters after 100 steps on 1, 2 and 4 ranks.
void rs2_parameters(const ProofOptions& options, const fs::path& points, Findings& findings) {
  const fs::path folder(options.scratch);
  const Assignments sets{"data.sampler=rs2", "sampler.ratio=0.1", "train.epochs=3.2258065", "snapshot.last=true"};  // 31 steps each
  Tensors alone;
  std::vector<std::string> samples;
  double differ = 0, apart = 0;
  for (const int ranks : {1, 2, 4}) {
    const fs::path out = folder / fmt::format("points-on-{}", ranks);
    const SampledRun run = train_sampled(points_recipe(points, options.seed, sets), out, ranks);
    if (ranks == 1) alone = snapshot_tensors(out, "model"), samples = run.samples;
    differ = std::max(differ, largest_difference(snapshot_tensors(out, "model"), alone));
    apart += steps_differing(run.samples, samples);
  }
  findings.at_least("2. steps of the classifier on 1, 2 and 4 ranks", 0, static_cast<double>(samples.size()), 100);
  findings.at_most("2. steps whose samples differ", 0, apart, 0);
  findings.at_most("2. largest difference of a parameter after them", 0, differ, 1e-5);
}

// 3. kill -9, and on with other ranks.
void rs2_kills(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr const char* kClaim = "3. processes killed by SIGKILL, each resumed in the next of 6 layouts: steps whose samples differ";
  if (options.program.empty()) return findings.skip(kClaim, "no program to start");
  const fs::path folder(options.scratch);
  Assignments sets{"model.layers=2",
                   "model.embed=16",
                   "model.heads=2",
                   "model.mlp=24",
                   "data.tokenizer=bytes",
                   "data.length=16",
                   "data.sampler=rs2",
                   "sampler.ratio=0.1",
                   "train.steps=0",
                   "train.epochs=8",
                   "train.global_batch=8",
                   "log.tensorboard=false",
                   "log.trace=false",
                   "log.samples=0",
                   "eval.every=0",
                   "eval.samples=4",
                   "snapshot.every=5",
                   "snapshot.keep=99",
                   "mesh.pp=1",  // a resumed run keeps what it is not told
                   "mesh.tp=1",
                   "mesh.cp=1",
                   "memory.zero=0",
                   fmt::format("train.seed={}", options.seed)};
  for (const std::string& text : sampler_texts(options, 40'000)) sets.push_back(text);
  run_and_kill({.program = options.program, .out = folder / "whole", .ranks = 1, .sets = sets, .kill = false});
  const SampledRun whole = read_sampled_run(folder / "whole");
  const fs::path out = folder / "killed";
  int killed = 0, kill = 0;
  for (const SamplerLayout& layout : sampler_layouts()) {
    if (layout.ranks == 1) continue;
    Assignments own = sets;
    own.insert(own.end(), layout.sets.begin(), layout.sets.end());
    const int64_t after = std::max<int64_t>(1, whole.steps() * ++kill / 7 / 5) * 5;
    killed += run_and_kill({.program = options.program, .out = out, .ranks = layout.ranks, .sets = own, .after_step = after});
  }
  run_and_kill({.program = options.program, .out = out, .ranks = 1, .sets = sets, .kill = false});
  log.info("rs2: {} steps, {} kills", whole.steps(), killed);
  findings.at_least("3. kills", 0, killed, 4);
  findings.at_most(kClaim, 0, steps_differing(read_sampled_run(out).samples, whole.samples), 0);
}

// 4. Ratio 1 is ordinary training.
void rs2_ratio_one(const ProofOptions& options, Findings& findings) {
  const fs::path folder(options.scratch);
  constexpr int64_t kTraining = 1280;
  write_teacher_points({.folder = folder / "small", .training = kTraining, .test = 100, .seed = options.seed});
  const auto run = [&](const std::string& name, const Assignments& sets) {
    return train_sampled(with(points_recipe(folder / "small", options.seed, {"train.epochs=5"}), sets), folder / name);
  };
  const SampledRun rs2 = run("ratio-1", {"data.sampler=rs2", "sampler.ratio=1"}), plain = run("shuffled", {});
  findings.at_most("4. ratio 1: steps whose samples are not those of the shuffled sampler", 0, steps_differing(rs2.samples, plain.samples),
                   0);
  findings.at_most("4. ratio 1: steps whose loss is not bitwise the same", 0, rs2.losses == plain.losses ? 0 : 1, 0);
}

// 5. A billion samples: what a round of ten million costs, drawn on all cores.
void draw_of_a_billion(Findings& findings, base::Log& log, bool on_large_machine) {
  constexpr int64_t kSamples = 1'000'000'000, kBatch = 10'000, kRound = 10'000'000;
  constexpr double kReadSeconds = static_cast<double>(kRound) * 4096 / 1.8e9;
  const auto sampler = data::make_sampler("rs2", rs2_facts(kSamples, kBatch, 3, 0.01, 1));
  const int64_t before = base::resident_bytes();
  const auto threads = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  const int64_t steps = on_large_machine ? kRound / kBatch : kRound / kBatch / 10;
  const base::RealClock clock;
  const auto begun = clock.now();
  std::vector<std::thread> workers;
  std::vector<int64_t> sums(static_cast<size_t>(threads));
  for (int64_t t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      for (int64_t step = 1000 + t; step < 1000 + steps; step += threads)
        for (const int64_t id : sampler->draw(step).ids) sums[static_cast<size_t>(t)] += id;
    });
  for (std::thread& one : workers) one.join();
  const double seconds = base::seconds(clock.now() - begun), ids = static_cast<double>(steps * kBatch);
  log.info("rs2: {:.0f} ids of a billion in {:.3f} s on {} threads: {:.1f} ns an id and thread", ids, seconds, threads,
           seconds * 1e9 * static_cast<double>(threads) / ids);
  findings.at_most("5. a billion samples: memory that drawing took, MiB", 0,
                   static_cast<double>(base::resident_bytes() - before) / (1 << 20), 64);
  if (on_large_machine)
    findings.at_most("5. ids of a round of 10 million: share of the time of reading them at 1.8 GB/s, 4 KB each", 1, seconds / kReadSeconds,
                     0.01);
}

struct Rs2Trial {
  std::string name;
  Assignments sets;
  int seeds = kRs2Judged;
};

// 6. Accuracy. Each trial on its inner seeds, two at a time.
std::map<std::string, std::vector<SampledRun>> rs2_accuracy_runs(const ProofOptions& options, base::Log& log) {
  const std::vector<Rs2Trial> trials{
      {"full", {"train.epochs=40", "eval.every=62"}},
      {"rs2 0.1", {"data.sampler=rs2", "sampler.ratio=0.1", "train.epochs=40", "eval.every=62"}, kRs2Seeds},
      {"static 0.1", {"data.sampler=rs2", "sampler.ratio=0.1", "sampler.fixed=true", "train.epochs=40", "eval.every=62"}},
      {"replacement 0.1", {"data.sampler=rs2", "sampler.ratio=0.1", "sampler.replacement=true", "train.epochs=40"}, kRs2Seeds},
      {"plain 4 epochs", {"train.epochs=4"}, kRs2Seeds},
      {"rs2 0.05", {"data.sampler=rs2", "sampler.ratio=0.05", "train.epochs=40"}},
      {"static 0.05", {"data.sampler=rs2", "sampler.ratio=0.05", "sampler.fixed=true", "train.epochs=40"}}};
  const fs::path folder(options.scratch);
  std::map<std::string, std::vector<SampledRun>> found;
  std::vector<std::pair<const Rs2Trial*, size_t>> jobs;
  for (const Rs2Trial& trial : trials) {
    found[trial.name].resize(static_cast<size_t>(trial.seeds));
    for (size_t seed = 0; seed < found[trial.name].size(); ++seed) jobs.emplace_back(&trial, seed);
  }
  in_parallel(static_cast<int64_t>(jobs.size()), [&](int64_t job) {
    const auto& [trial, seed] = jobs[static_cast<size_t>(job)];
    found.at(trial->name)[seed] = train_sampled(points_recipe(folder / fmt::format("points-{}", seed), options.seed + seed, trial->sets),
                                                folder / fmt::format("{} of {}", trial->name, seed));
  });
  for (const Rs2Trial& trial : trials)
    for (const SampledRun& run : found.at(trial.name))
      log.info("{}: {} steps, accuracy {:.3f}", trial.name, run.steps(), run.last_accuracy());
  return found;
}

// Steps until an evaluation reaches `accuracy`; nothing where none does.
std::optional<double> steps_to_accuracy(const SampledRun& run, double accuracy) {
  for (const auto& [step, found] : run.accuracy)
    if (found >= accuracy) return static_cast<double>(step);
  return std::nullopt;
}

void draw_rs2_accuracy(const ProofOptions& options, const std::map<std::string, std::vector<SampledRun>>& runs) {
  CurvesPicture picture{.title = "20,000 points: held-out accuracy", .across = "steps", .up = "accuracy", .logarithmic_across = true};
  for (const std::string name : {"full", "rs2 0.1", "static 0.1"}) {
    Curve curve{name, curve_colour(picture.curves.size()), {}};
    for (const auto& [step, found] : runs.at(name)[0].accuracy) curve.points.emplace_back(static_cast<double>(step), found);
    picture.curves.push_back(std::move(curve));
  }
  write_curves(options.pictures, "rs2-accuracy", picture);
}

void rs2_accuracy(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto runs = rs2_accuracy_runs(options, log);
  const auto of = [&](const std::string& name, size_t seed) { return runs.at(name)[seed].last_accuracy(); };
  double gain_5 = 1, gain_10 = 1, multiple = INFINITY, unreached = 0;  // least; seeds
  for (size_t seed = 0; seed < kRs2Judged; ++seed) {
    gain_5 = std::min(gain_5, of("rs2 0.05", seed) - of("static 0.05", seed));
    gain_10 = std::min(gain_10, of("rs2 0.1", seed) - of("static 0.1", seed));
    const std::optional<double> steps = steps_to_accuracy(runs.at("full")[seed], of("rs2 0.1", seed));
    if (steps) multiple = std::min(multiple, *steps / static_cast<double>(runs.at("rs2 0.1")[seed].steps()));
    unreached += steps ? 0 : 1;
  }
  const auto mean_above = [&](const std::string& other) {
    double sum = 0;
    for (size_t seed = 0; seed < kRs2Seeds; ++seed) sum += of("rs2 0.1", seed) - of(other, seed);
    return sum / kRs2Seeds;
  };
  findings.at_least("6. ratio 0.05, 40 rounds: accuracy above that of a fixed subset, least of 3 seeds", 0, gain_5, 0.08);
  findings.at_least("6. ratio 0.1: the same", 0, gain_10, 0.08);
  findings.at_most("6. ratio 0.1: with against without replacement, difference of the mean accuracy of 8 seeds", 0,
                   std::abs(mean_above("replacement 0.1")), 0.02);
  findings.at_most("6. full runs of 3 that never have the accuracy of ratio 0.1", 0, unreached, 0);
  findings.at_least("6. steps of the full run until it has that accuracy, as a multiple of those of ratio 0.1, least of 3 seeds", 1,
                    unreached > 0 ? 0 : multiple, 2.5);
  findings.at_most("6. ratio 0.1, 40 rounds against plain training for 4 epochs: difference of the mean accuracy of 8 seeds", 0,
                   std::abs(mean_above("plain 4 epochs")), 0.01);
  draw_rs2_accuracy(options, runs);
}

}  // namespace

void prove_rs2(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path folder(options.scratch);
  sampler_texts(options, kRs2TextBytes);  // refuses --data that is too short
  in_parallel(kRs2Seeds, [&](int64_t seed) {
    write_teacher_points(
        {.folder = folder / fmt::format("points-{}", seed), .training = 20'000, .seed = options.seed + static_cast<uint64_t>(seed)});
  });
  rs2_cycles(options, findings);
  rs2_layouts(options, findings, log);
  rs2_adapters(options, findings, log);
  rs2_parameters(options, folder / "points-0", findings);
  rs2_kills(options, findings, log);
  rs2_ratio_one(options, findings);
  draw_of_a_billion(findings, log, /*on_large_machine=*/false);
  rs2_accuracy(options, findings, log);
}

void prove_rs2_on_gpu(const ProofOptions&, Findings& findings, base::Log& log) {
  draw_of_a_billion(findings, log, /*on_large_machine=*/true);
}

}  // namespace cairn::study
