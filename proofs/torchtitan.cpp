// TorchTitan: one model, one named mesh, techniques composed. The baseline is one process with the same global batch.
#include <algorithm>
#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files/faulty_disk.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "model/decoder/residual_stream.h"
#include "model/model.h"
#include "proofs/layout_run.h"
#include "proofs/timed_model.h"
#include "snapshot/snapshot.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

struct Named {
  std::string name;
  Assignments sets;
  int degree;  // over how many ranks parameters, gradients and optimizer state are sharded
};

constexpr int kRanks = 8;

std::vector<Named> layouts() {
  return {{"dp8", {"mesh.dp=8"}, 1},
          {"dp_shard4.tp2", {"mesh.dp=4", "mesh.shard=4", "mesh.tp=2"}, 8},
          {"pp2.dp_shard2.tp2", {"mesh.pp=2", "mesh.dp=2", "mesh.shard=2", "mesh.tp=2"}, 8},
          {"pp2.cp2.tp2", {"mesh.pp=2", "mesh.cp=2", "mesh.tp=2", "memory.zero=3"}, 8},
          {"dp_replicate2.dp_shard2.tp2", {"mesh.dp=4", "mesh.shard=2", "mesh.tp=2"}, 4}};
}

Named looped() {
  return {"pp4.dp2 looped",
          {"mesh.pp=4", "mesh.dp=2", "pipeline.schedule=interleaved", "pipeline.stages_per_rank=2", "pipeline.micro_batches=4"},
          4};
}

base::Recipe llama(const ProofOptions& options, int layers, const Assignments& sets) {
  base::Recipe recipe =
      small_decoder(options, {fmt::format("model.layers={}", layers), "model.embed=64", "model.heads=4", "model.kv_heads=2",
                              "model.mlp=160", "model.tied=false", "data.length=32", "train.global_batch=8"});
  return with(std::move(recipe), sets);
}

// 1. The same losses and norms in every layout.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  const auto compare = [&](const Trained& one, const base::Recipe& recipe, const Named& layout) {
    log.info("exactness: {}", layout.name);
    const Trained many = train_layout({with(recipe, layout.sets), kRanks, scratch / layout.name});
    findings.at_most(fmt::format("1. {}: relative difference of 10 losses to one process", layout.name), 0,
                     largest_relative_difference(one.losses, many.losses), 1e-5);
    findings.at_most(fmt::format("1. {}: relative gradient norm difference", layout.name), 0,
                     largest_relative_difference(one.norms, many.norms), 1e-4);
  };
  const base::Recipe four = llama(options, 4, {"train.steps=10"}), eight = llama(options, 8, {"train.steps=10"});
  const Trained one = train_layout({four, 1, scratch / "one"});
  for (const Named& layout : layouts()) compare(one, four, layout);
  compare(train_layout({eight, 1, scratch / "one-eight"}), eight, looped());
}

// A writer that dies while it saves step 10: what it leaves must not be taken for a snapshot.
int64_t step_after_killed_save(const base::Recipe& recipe, const Assignments& sets, const std::filesystem::path& run,
                               const base::DiskFaults& faults) {
  const base::FaultyDisk disk(faults);
  comm::LocalNetwork(kRanks).run([&](comm::World& world) {
    train::Start start;
    start.out = run;
    start.resume = true;
    const std::unique_ptr<train::Job> job = train::build(world, with(recipe, sets), start, {});
    for (int i = 0; i < 5; ++i) {
      train::take_step(*job);
      ++job->progress.steps_done;
    }
    base::Log quiet = base::Log::quiet();
    try {
      const base::RealClock clock;
      train::SnapshotWriter(*job, quiet, clock, disk).save();
    } catch (const Error&) {  // a rank is dead; what is on disk is what counts
    }
  });
  base::Log log = base::Log::quiet();
  const std::optional<snapshot::OpenSnapshot> found = snapshot::open_latest(run.string(), log);
  return disk.fired() > 0 && found ? found->step() : -1;
}

// 2. Saved in one layout, continued in every other.
void elastic(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  const base::Recipe recipe = llama(options, 4, {"train.steps=10", "snapshot.every=5"});
  const Named saved{"pp2.dp_shard2.tp2", {"mesh.pp=2", "mesh.dp=2", "mesh.shard=2", "mesh.tp=2"}, 8};
  const Trained whole = train_layout({with(recipe, saved.sets), kRanks, scratch / "saved"});
  copy_up_to(scratch / "saved", scratch / "at-5", 5);
  const Tensors parameters = snapshot_tensors(scratch / "at-5", "model"), optimizer = snapshot_tensors(scratch / "at-5", "optimizer");
  double loaded = 0, losses = 0;
  std::vector<Named> others = layouts();
  others.push_back({"one rank", {}, 1});
  for (const Named& layout : others) {
    if (layout.name == saved.name) continue;
    log.info("elastic: {} to {}", saved.name, layout.name);
    const int ranks = layout.name == "one rank" ? 1 : kRanks;
    const RunStats books = collect_stats({with(recipe, layout.sets), ranks, 0, scratch / "at-5"});
    loaded = std::max({loaded, largest_difference(parameters, books.parameters), largest_difference(optimizer, books.optimizer)});
    const std::filesystem::path copy = scratch / ("from-5-" + layout.name);
    copy_up_to(scratch / "saved", copy, 5);
    const Trained resumed = train_layout({with(recipe, layout.sets), ranks, copy, true});
    losses = std::max(losses, largest_relative_difference(whole.losses, resumed.losses));
  }
  findings.at_most("2. saved as pp2.dp_shard2.tp2 at step 5, loaded in 5 other layouts: largest difference of any tensor", 0, loaded, 0);
  findings.at_most("2. the same: relative difference of the losses to step 10 to the uninterrupted run", 0, losses, 1e-5);
  int64_t wrong = 0;
  const std::vector<base::DiskFaults> deaths{{.error_after_bytes = 1000}, {.error_after_bytes = 300000}, {.crash_before_rename = true}};
  for (size_t i = 0; i < deaths.size(); ++i) {
    log.info("a writer that dies, {} of {}", i + 1, deaths.size());
    const std::filesystem::path copy = scratch / fmt::format("killed-{}", i);
    copy_up_to(scratch / "saved", copy, 5);
    wrong += step_after_killed_save(recipe, saved.sets, copy, deaths[i]) == 5 ? 0 : 1;
  }
  findings.at_most("2. a writer that dies in 3 places while saving step 10: how often its step is taken for one", 3,
                   static_cast<double>(wrong), 0);
}

// 3. What ranks hold between steps.
void sharding(const ProofOptions& options, Findings& findings, base::Log& log) {
  for (const Named& layout : layouts()) {
    if (layout.degree == 1) continue;
    log.info("sharding: {}", layout.name);
    // Stages of two layers each: the table is with the first, the head, as large, with the last.
    base::Recipe recipe = with(llama(options, 4, {"train.steps=4"}), layout.sets);
    if (layout.name.starts_with("pp2")) recipe.set("pipeline.split=[\"2\",\"2\"]");
    const RunStats books = collect_stats({recipe, kRanks, 1});
    const double full = 16.0 * static_cast<double>(books.elements);  // parameter, gradient, two moments, in fp32
    double most = 0;
    for (const RankStats& rank : books.ranks) most = std::max(most, static_cast<double>(rank.state()));
    findings.at_most(
        fmt::format("3. {}: bytes of parameters, gradients and optimizer of the fullest rank over full/{}", layout.name, layout.degree),
        layout.degree, most * layout.degree / full, 1.05);
  }
}

// 4. Gathers behind compute, in virtual time.
void overlap(Findings& findings, base::Log& log) {
  log.info("overlap in virtual time");
  ShardedRun run;
  run.blocks = {.blocks = 12, .forward_s = 0.010, .input_s = 0.010, .weight_s = 0.010, .parameter_elements = 4003};

  const double compute = 12 * 0.030;
  ShardedRun messages = run;
  messages.blocks.forward_s = messages.blocks.input_s = messages.blocks.weight_s = 0;
  messages.prefetches = messages.reduces_early = false;
  messages.link.bytes_per_s = 1e6;
  run.link.bytes_per_s = messages.link.bytes_per_s * time_sharded_step(messages) / compute;
  messages.link = run.link;
  const double share = time_sharded_step(messages) / compute;
  ShardedRun slow = run;
  slow.prefetches = false;
  findings.at_least(fmt::format("4. fully sharded, messages {:.2f} of compute: step without prefetch over step with it", share), 1,
                    time_sharded_step(slow) / time_sharded_step(run), 1.4);
}

// 4. Products that begin with the rows that are here, in virtual time: the product's own way in and out of a layer, around a product of
// declared cost. The baseline gathers (or multiplies) first.
double time_layer(bool overlaps, double product_s) {
  constexpr int64_t kTokens = 1000, kWidth = 50;
  comm::LocalOptions options;
  options.link = quick_links();
  options.link.bytes_per_s =
      static_cast<double>(kTokens / 2 * kWidth * 4) / product_s;  // half of the tokens, as long as the product over all
  double longest = 0;
  std::mutex mutex;
  const auto ended = comm::LocalNetwork(2, options).run([&](comm::World& world) {
    mesh::Axes axes;
    axes.put("tp", world.everyone());
    model::Buffers buffers;
    const model::FlatWeights none({}, at::empty({0}));
    const model::PassOptions pass_options{.overlap = overlaps};
    const model::Call call{.weights = none, .buffers = buffers, .axes = axes, .options = pass_options};
    const auto product = [&](const at::Tensor& /*rows*/, int64_t /*begin*/, int64_t count) {
      const double seconds = product_s * static_cast<double>(count) / kTokens;
      world.timer(world.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))).wait();
    };
    const auto begun = world.clock().now();
    const at::Tensor all = model::gather_tokens(at::zeros({kTokens / 2, kWidth}), {1, kTokens}, call, "layer", product);
    model::reduce_scatter_tokens(all, call, "layer", product);
    world.everyone().barrier("layer").wait_host();
    const std::lock_guard lock(mutex);
    longest = std::max(longest, base::seconds(world.clock().now() - begun));
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  return longest;
}

void asynchronous_products(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("asynchronous tensor parallelism");
  findings.at_least("4. tp=2, messages as long as products: gather, multiply, multiply, sum over the same overlapped", 1,
                    time_layer(false, 0.020) / time_layer(true, 0.020), 1.15);
  const std::filesystem::path scratch = options.scratch;
  const base::Recipe recipe = llama(options, 4, {"train.steps=10", "mesh.tp=2"});
  const Trained plain = train_layout({recipe, 2, scratch / "tp"});
  const Trained overlapped = train_layout({with(recipe, {"tensor.overlap=true"}), 2, scratch / "async-tp"});
  findings.at_most(
      "4. tp=2, 10 steps: largest difference of losses and parameters, overlapped to plain", 0,
      std::max(largest_relative_difference(plain.losses, overlapped.losses), largest_difference(plain.parameters, overlapped.parameters)),
      1e-5);
}

// 5. Interleaving pays.
void interleaving(Findings& findings, base::Log& log) {
  log.info("interleaved against 1f1b");
  PipelineRun run{.schedule = "1f1b", .ranks = 4, .stages_per_rank = 1, .micro_batches = 8};
  run.blocks = {.blocks = 8, .forward_s = 0.010, .input_s = 0.010, .weight_s = 0.010, .boundary_elements = 8};
  const double straight = time_pipeline(run).step_s;
  run.schedule = "interleaved";
  run.stages_per_rank = 2;
  const double interleaved = time_pipeline(run).step_s;
  findings.at_least("5. p=4, m=8, balanced layers: step of 1f1b over step of interleaved with 2 stages a rank (theory 1.158)", 1,
                    straight / interleaved, 1.1);
}

// Of 7: recompute, which needs no GPU to be counted.
void recompute(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("recompute");
  const base::Recipe keep = llama(options, 8, {"train.steps=5"}), again = with(keep, {"recompute.mode=full"});
  const RunStats kept = collect_stats({keep, 1, 3}), recomputed = collect_stats({again, 1, 3});
  findings.at_least("7. most bytes of activations, keeping everything over recompute full (8 layers, one rank, fp32, CPU)", 1,
                    static_cast<double>(kept.ranks[0].activations_most) / static_cast<double>(recomputed.ranks[0].activations_most), 2);
  findings.at_most("7. the same: relative loss difference", 0, largest_relative_difference(kept.losses, recomputed.losses), 0);
}

}  // namespace

void prove_torchtitan(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  elastic(options, findings, log);
  sharding(options, findings, log);
  overlap(findings, log);
  asynchronous_products(options, findings, log);
  interleaving(findings, log);
  recompute(options, findings, log);
}

}  // namespace cairn::study
