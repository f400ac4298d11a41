// DataStates-LLM: snapshots that are copied while forward and backward run, and written in the background. The baselines are the product's
// other modes: sync (training waits for the disk) and async (it waits for the copy). The disk is slow on purpose:
// snapshot.write_bytes_per_s, set so that a snapshot takes as long to write as 3.2 steps, as 96 MB at 100 MB/s do with steps of 0.3 s.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "base/recipe.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/datastates_parts.h"
#include "snapshot/staging.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/state/lazy_forecast.h"
#include "train/state/part_save.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr double kWriteSteps = 3.2;  // steps that writing a snapshot takes

struct Saves {
  std::string mode = "lazy";
  int64_t steps = 60, every = 4;
  double bytes_per_s = 0;     // of the disk; 0: as it is
  std::string ring = "auto";  // snapshot.host_bytes
  bool every_other = false;   // of the intervals of `every` steps, every other one begins with a save
  double copy_delay_s = 0;    // added to every block
  bool barrier = true;
};

struct Outcome {
  std::vector<double> steps_s;   // each step by the clock, with the save after the step before it
  std::vector<double> stalls_s;  // of each save: in save, and before the update after it
  std::vector<double> writes_s;  // until the save was written
  double total_s = 0;            // of all steps and saves, and the wait for the last one
  double state_bytes = 0;
  int64_t memory_peak = 0;  // that saves took on the host
};

double mean(const std::vector<double>& all) {
  double sum = 0;
  for (const double one : all) sum += one / static_cast<double>(all.size());
  return sum;
}
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[all.size() / 2];
}

// 8 million parameters: 96 MB with AdamW's moments.
base::Recipe recipe_of(const ProofOptions& options, const Saves& saves) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 4
    embed = 320
    heads = 4
    kv_heads = 4
    mlp = 1280
    [data]
    vocab = 512
    length = 64
    stories_bytes = 200000
    [train]
    global_batch = 4
    [snapshot]
    keep = 3
    [log]
    tensorboard = false
    trace = false
    samples = 0
  )",
                                            "datastates");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  recipe.set("train.steps", saves.steps + 4, "proof");
  recipe.set("snapshot.every=" + std::to_string(saves.every));
  recipe.set("snapshot.mode=" + saves.mode);
  recipe.set("snapshot.host_bytes=" + saves.ring);
  recipe.set("snapshot.write_bytes_per_s=" + std::to_string(static_cast<int64_t>(saves.bytes_per_s)));
  return recipe;
}

void step_once(train::Job& job) {
  train::take_step(job);
  ++job.progress.steps_done;
}

// A run of one rank, whose loop is that of train/loop.cpp without reports.
Outcome run_saves(const ProofOptions& options, const Saves& saves, const fs::path& out) {
  Outcome found;
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    const std::unique_ptr<train::Job> job =
        train::build(world, recipe_of(options, saves), {.out = out, .cache = {}, .terminal = nullptr}, {});
    found.state_bytes = static_cast<double>(train::collect(*job).bytes);
    train::SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
    for (int i = 0; i < 3; ++i) step_once(*job);  // caches warm up
    const base::RealClock clock;
    int64_t intervals = 0;
    bool saved = false;
    for (int64_t step = 1; step <= saves.steps; ++step) {
      const double begun = base::seconds(clock.now());
      writer.notice_failure();
      step_once(*job);
      const double stall = writer.take_held_up_s();
      if (saved) found.stalls_s.push_back(stall);
      if (const double written = sync::metric(writer.take_metrics(), "snapshot_write_s"); written > 0) found.writes_s.push_back(written);
      saved = saves.every > 0 && step % saves.every == 0 && step < saves.steps && (!saves.every_other || intervals++ % 2 == 0);
      if (saved) writer.save();
      found.steps_s.push_back(base::seconds(clock.now()) - begun);
    }
    writer.finish();
    found.total_s = base::seconds(clock.now());
    found.memory_peak = job->instruments.memory->of(base::MemoryUse::snapshot).peak;
    writer.rethrow_failure();
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  fs::remove_all(out);
  return found;
}

double memcpy_rate() {
  std::vector<std::byte> from(32 << 20, std::byte{1}), to(32 << 20);
  const base::RealClock clock;
  std::memcpy(to.data(), from.data(), from.size());  // page faults
  const double begun = base::seconds(clock.now());
  for (int i = 0; i < 4; ++i) std::memcpy(to.data(), from.data(), from.size());
  return 4 * static_cast<double>(from.size()) / (base::seconds(clock.now()) - begun);
}

// Item 1: what saving costs training, by mode; and the forecast of how long a save is under way.
void stalls(const ProofOptions& options, double step_s, double state, Findings& findings, base::Log& log) {
  const fs::path scratch = options.scratch;
  const double rate = state / (kWriteSteps * step_s);
  const Outcome sync = run_saves(options, {.mode = "sync", .bytes_per_s = rate}, scratch / "sync");
  const Outcome async = run_saves(options, {.mode = "async", .steps = 24, .bytes_per_s = rate}, scratch / "async");
  const Outcome lazy = run_saves(options, {.mode = "lazy", .bytes_per_s = rate}, scratch / "lazy");
  log.info("stall of a save, in seconds: sync {:.3f}, async {:.4f}, lazy {:.4f}; 60 steps: sync {:.1f} s, lazy {:.1f} s",
           mean(sync.stalls_s), mean(async.stalls_s), mean(lazy.stalls_s), sync.total_s, lazy.total_s);
  findings.at_least("sync: a save holds up training for as long as the disk takes, of that", 1, mean(sync.stalls_s) * rate / state, 0.9);
  findings.at_most("lazy: training waits for a save, of what it waits with sync", mean(sync.stalls_s),
                   mean(lazy.stalls_s) / mean(sync.stalls_s), 0.10);
  findings.at_most("lazy: the same, of what it waits with async (copied inside save)", mean(async.stalls_s),
                   mean(lazy.stalls_s) / mean(async.stalls_s), 0.50);
  findings.at_least("60 steps, a save every 4: times faster with lazy than with sync", sync.total_s, sync.total_s / lazy.total_s, 1.4);
  const train::LazyForecast expected = train::forecast({.state_bytes = state,
                                                        .ring_bytes = 1.25 * state,
                                                        .copy_rate = memcpy_rate(),
                                                        .write_rate = rate,
                                                        .window_s = step_s,
                                                        .step_s = step_s});
  findings.at_most("forecast of the time until a save is written: off by at most", expected.write_s,
                   std::abs(mean(lazy.writes_s) / expected.write_s - 1), 0.20);
}

// Item 4: a ring of a quarter of the state.
void small_ring(const ProofOptions& options, double step_s, double state, Findings& findings, base::Log& log) {
  const double rate = state / (kWriteSteps * step_s);
  const auto ring = static_cast<int64_t>(state / 4);
  const Outcome found =
      run_saves(options, {.steps = 24, .every = 6, .bytes_per_s = rate, .ring = std::to_string(ring)}, fs::path(options.scratch) / "ring");
  const train::LazyForecast expected = train::forecast({.state_bytes = state,
                                                        .ring_bytes = static_cast<double>(ring),
                                                        .copy_rate = memcpy_rate(),
                                                        .write_rate = rate,
                                                        .window_s = step_s,
                                                        .step_s = step_s});
  log.info("a ring of a quarter of the state: stall {:.3f} s, forecast {:.3f} s", mean(found.stalls_s), expected.stall_s);
  findings.at_most("ring of 25 % of the state: stall of a save, off its forecast by at most", expected.stall_s,
                   std::abs(mean(found.stalls_s) / expected.stall_s - 1), 0.25);
  findings.at_most("ring of 25 % of the state: most host memory that saves took, beyond the ring, in MiB",
                   static_cast<double>(ring) / 0x1p20, static_cast<double>(found.memory_peak - ring) / 0x1p20, 32);
}

// The issue's bound: with and without a save in turn, ten steps at a time, so that a machine that changes its pace does so for both.
void cost_of_saves(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int64_t kEvery = 10;
  const Outcome found =
      run_saves(options, {.steps = options.full ? 241 : 121, .every = kEvery, .every_other = true}, fs::path(options.scratch) / "cost");
  std::vector<double> with, without;
  for (size_t begin = kEvery; begin + kEvery <= found.steps_s.size(); begin += kEvery) {
    double sum = 0;
    for (size_t i = begin; i < begin + kEvery; ++i) sum += found.steps_s[i];
    (begin / kEvery % 2 == 1 ? with : without).push_back(sum);
  }
  const double step_s = median(without) / kEvery;
  log.info("ten steps with a save {:.3f} s, without {:.3f} s (medians of {}); stall of a save {:.4f} s", median(with), median(without),
           with.size(), median(found.stalls_s));
  findings.at_most("a lazy save every 10 steps: training waits, of the time of 10 steps", kEvery * step_s,
                   median(found.stalls_s) / (kEvery * step_s), 0.03);
  findings.at_most("a lazy save every 10 steps: these take longer by the clock, with the cores that copies and writes take",
                   median(without), median(with) / median(without) - 1, 0.03);
}

std::map<std::string, std::string> saved_tensors(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files[fs::relative(entry.path(), folder)] = base::read_file(entry.path(), 1 << 29);
  return files;
}

// A copy of all that is saved, made by brute force before training goes on.
train::RankSnapshot cloned(train::Job& job) {
  train::RankSnapshot saved = train::collect(job);
  for (auto& [section, shared] : saved.part.shared)
    for (auto& part : shared.parts) part.data = part.data.clone();
  for (auto& piece : saved.part.own) piece.data = piece.data.clone();
  for (auto& [section, tensors] : saved.rest->tensors)
    for (mesh::NamedTensor& one : tensors) one.tensor = one.tensor.clone();
  return saved;
}

void write_clone(train::RankSnapshot saved, int64_t step, const fs::path& out) {
  auto staging = std::make_unique<snapshot::StagingFolder>(out.string(), step, saved.bytes, base::real_disk());
  const std::string folder = staging->path().string();
  train::PartSave save({.run_dir = out.string(),
                        .folder = folder,
                        .rank = 0,
                        .ranks = 1,
                        .keep = 9,
                        .staging = std::move(staging),
                        .saved = std::move(saved),
                        .disk = base::real_disk()});
  save.write();
  save.commit();
}

// Item 2: copies take three times as long as forward and backward. Returns how many of the files of three saves differ from the clones.
int64_t differing(const ProofOptions& options, bool barrier, double step_s) {
  const fs::path scratch = fs::path(options.scratch) / (barrier ? "race" : "race-without");
  int64_t differ = 0, files = 0;
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    const Saves saves{.steps = 8, .every = 0};
    const std::unique_ptr<train::Job> job =
        train::build(world, recipe_of(options, saves), {.out = scratch / "lazy", .cache = {}, .terminal = nullptr}, {});
    const train::RankSnapshot shapes = train::collect(*job);
    const snapshot::PartWriter layout({}, shapes.part, base::real_disk(), {.open_later = true});
    const std::chrono::duration<double> delay(3 * step_s / static_cast<double>(layout.blocks().size()));
    train::SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk(), [&](size_t) { wait_for_time(delay); });
    if (!barrier) job->barrier.attach(nullptr);
    step_once(*job);
    for (int save = 0; save < 3; ++save) {
      train::RankSnapshot oracle = cloned(*job);
      const int64_t step = job->progress.steps_done;
      writer.save();
      for (int i = 0; i < 2; ++i) step_once(*job);
      writer.finish();
      write_clone(std::move(oracle), step, scratch / "oracle");
      const std::string name = fmt::format("snapshots/step-{:08}", step);
      const auto expected = saved_tensors(scratch / "oracle" / name), found = saved_tensors(scratch / "lazy" / name);
      for (const auto& [file, bytes] : expected) {
        ++files;
        differ += !found.contains(file) || found.at(file) != bytes;
      }
    }
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  fs::remove_all(scratch);
  return files > 0 ? differ : -1;
}

}  // namespace

void prove_datastates(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Outcome plain = run_saves(options, {.steps = 12, .every = 0}, fs::path(options.scratch) / "plain");
  const double step_s = median(plain.steps_s), state = plain.state_bytes;
  log.info("{:.1f} MB of state, {:.3f} s a step", state / 1e6, step_s);
  stalls(options, step_s, state, findings, log);
  log.info("copies that take three times as long as a step");
  findings.at_most("copies delayed to 3x a step: files that differ from a clone made after the update", 0,
                   static_cast<double>(differing(options, true, step_s)), 0);
  findings.at_least("the same without the barrier (must fail): files that differ", 0,
                    static_cast<double>(differing(options, false, step_s)), 1);
  small_ring(options, step_s, state, findings, log);
  cost_of_saves(options, findings, log);
  prove_lazy_saves_survive_kills(options, findings, log);
  findings.skip("1.3 B parameters on one GPU, a save every 60 s: blocking at most 3 % of sync, throughput loss at most 2 %", "needs a GPU");
  findings.skip("copies overlap forward kernels for 90 % of the copy time (profiler)", "needs a GPU");
}

}  // namespace cairn::study
