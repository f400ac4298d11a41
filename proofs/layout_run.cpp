#include "proofs/layout_run.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "base/log.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "parallel/stage_run.h"
#include "snapshot/snapshot.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/state/full_state.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::study {
namespace {

void rethrow(const std::vector<std::exception_ptr>& ended) {
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
}

Tensors by_name(const mesh::NamedTensors& tensors) {
  Tensors found;
  for (const mesh::NamedTensor& one : tensors) found[one.name] = one.tensor.clone();
  return found;
}

// All messages that bring parameters up to date have come, and everybody knows.
void settle(comm::World& world, const train::Job& job) {
  const parallel::ParameterStore& store = *job.engine.store;
  if (job.config.plan.zero < 3)
    for (size_t i = 0; i < store.shard().parameters.size(); ++i) store.weights().get({static_cast<int32_t>(i)});
  world.everyone().barrier("books").wait_host();
}

std::vector<int64_t> unit_bytes(const train::Job& job) {
  const auto least = static_cast<int64_t>(job.config.settings.sync.bucket_mib * (1 << 20)) / 4;
  std::vector<int64_t> bytes;
  for (const parallel::ShardUnit& unit : parallel::make_shard_units(*job.engine.model, job.engine.store->shard().layout,
                                                                    parallel::shard_unit_rules(job.config.plan, false, least)))
    bytes.push_back(4 * unit.elements);
  std::sort(bytes.rbegin(), bytes.rend());
  return bytes;
}

// Inputs that a forward pass over the rank's first samples leaves behind where blocks recompute. The head is left out: it keeps its logits.
int64_t checkpoint_bytes(train::Job& job) {
  const model::PassOptions& options = job.engine.options;
  if (options.recompute.empty() && !options.recompute_stage) return 0;
  const mesh::Batch batch = mesh::slice(job.ahead.loader->next(), 0, job.engine.micro_batching.samples);
  mesh::Gradients& sink = job.engine.store->sink();
  base::MemoryTags memory;
  parallel::Pass pass = train::pass_over(job.engine, batch);
  pass.into = &sink;
  pass.memory = &memory;
  pass.recompute = true;
  parallel::StageRun run(pass, {0, job.engine.model->blocks().size() - 1}, /*releases=*/true);
  run.forward();
  return memory.of(base::MemoryUse::activations).now;
}

struct Counts {
  std::map<comm::Purpose, int64_t> sent, messages;
  std::map<int, int64_t> activations;
};

Counts counts(comm::World& world) {
  Counts all;
  for (int p = 0; p < comm::kPurposes; ++p) {
    const auto purpose = static_cast<comm::Purpose>(p);
    all.sent[purpose] = world.ledger().bytes_sent(world.rank(), purpose);
    all.messages[purpose] = world.ledger().messages_sent(world.rank(), purpose);
  }
  for (int to = 0; to < world.size(); ++to) all.activations[to] = world.ledger().between(world.rank(), to, comm::Purpose::activation).bytes;
  return all;
}

}  // namespace

base::Recipe small_decoder(const ProofOptions& options, const Assignments& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [data]
    tokenizer = "bytes"
    length = 16
    stories_bytes = 60000
    [optim]
    warmup_steps = 4
    learning_rate = 0.0006
    [eval]
    every = 0
    samples = 4
    [snapshot]
    every = 0
    [log]
    tensorboard = false
    trace = false
    samples = 0
  )",
                                            "proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  if (!options.data.empty()) recipe.set("data.path", options.data, "--data");
  return with(std::move(recipe), sets);
}

base::Recipe with(base::Recipe recipe, const Assignments& sets) {
  for (const std::string& one : sets) recipe.set(one);
  return recipe;
}

Tensors snapshot_tensors(const std::filesystem::path& run, const std::string& section) {
  base::Log log = base::Log::quiet();
  const std::optional<snapshot::OpenSnapshot> opened = snapshot::open_latest(run.string(), log);
  Tensors tensors;
  if (!opened || !opened->has_section(section)) return tensors;
  for (const auto& entry : opened->entries(section)) tensors[entry.name] = opened->tensor(section, entry.name).clone();
  return tensors;
}

Trained train_layout(const LayoutRun& run) {
  const base::Stop never;
  rethrow(comm::LocalNetwork(run.ranks).run([&](comm::World& world) {
    train::Start start;
    start.out = run.out;
    start.resume = run.resume;
    start.cache = run.out.parent_path() / "cache";
    train::run(world, run.recipe, start, {}, never);
  }));
  Trained trained;
  for (const base::MetricsRow& row : base::read_metrics(run.out / "metrics.jsonl")) {
    trained.losses.push_back(row.number("loss"));
    trained.norms.push_back(row.number("grad_norm"));
  }
  trained.parameters = snapshot_tensors(run.out, "model");
  trained.optimizer = snapshot_tensors(run.out, "optimizer");
  return trained;
}

void copy_up_to(const std::filesystem::path& from, const std::filesystem::path& to, int64_t step) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::directory_iterator(to / "snapshots"))
    if (entry.path().filename().string() > fmt::format("step-{:08}", step)) std::filesystem::remove_all(entry.path());
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double scale = std::max(std::abs(a[i]), std::abs(b[i]));
    const double one = scale == 0 ? 0 : std::abs(a[i] - b[i]) / scale;
    if (!(one <= largest)) largest = std::isnan(one) ? INFINITY : one;
  }
  return largest;
}

double largest_difference(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double largest = 0;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.sizes() != tensor.sizes()) return INFINITY;
    if (tensor.numel() == 0) continue;
    const double one = (tensor.to(at::kDouble) - other->second.to(at::kDouble)).abs().max().item<double>();
    if (!(one <= largest)) largest = std::isnan(one) ? INFINITY : one;
  }
  return largest;
}

RunStats collect_stats(const StatsRun& run) {
  RunStats books;
  books.ranks.resize(static_cast<size_t>(run.ranks));
  std::mutex mutex;
  rethrow(comm::LocalNetwork(run.ranks).run([&](comm::World& world) {
    train::Start start;
    start.out = run.resume_from;
    start.resume = !run.resume_from.empty();
    const std::unique_ptr<train::Job> job = train::build(world, run.recipe, start, {});
    if (run.micro_batches > 0) job->engine.micro_batching.count = run.micro_batches;
    std::vector<double> losses;
    const auto take = [&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const train::TakenStep taken = train::take_step(*job);
        ++job->progress.steps_done;
        job->progress.tokens_done += taken.tokens;
        const at::Tensor loss = taken.output.loss_sum.to(at::kDouble).clone();
        world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
        losses.push_back(loss.item<double>() / static_cast<double>(taken.loss_denominator));
      }
      settle(world, *job);
    };
    if (run.steps > 0) take(1);  // the first tells others its shapes
    const Counts before = counts(world);
    if (run.steps > 0) take(run.steps);
    const Counts after = counts(world);

    parallel::ParameterStore& store = *job->engine.store;
    RankStats mine;
    mine.parameters = store.parameter_bytes();
    mine.gradients = store.gradient_bytes();
    for (const mesh::NamedTensor& one : job->engine.optimizer->state()) mine.optimizer += static_cast<int64_t>(one.tensor.nbytes());
    mine.gradients_most = store.reducer().peak_bytes();
    mine.gathered_most = store.sharded_weights().peak_gathered_bytes();
    mine.activations_most = job->instruments.memory->of(base::MemoryUse::activations).peak;
    for (const auto& [purpose, bytes] : after.sent)
      if (run.steps > 0) mine.sent[purpose] = (bytes - before.sent.at(purpose)) / run.steps;
    for (const auto& [purpose, messages] : after.messages)
      if (run.steps > 0) mine.messages[purpose] = (messages - before.messages.at(purpose)) / run.steps;
    for (const auto& [to, bytes] : after.activations)
      if (run.steps > 0 && bytes > 0) mine.activations_sent[to] = (bytes - before.activations.at(to)) / run.steps;
    for (const parallel::ParameterSlice& piece : store.pieces()) {
      mine.kept[piece.name] = piece.value.clone();
      for (const int other : store.shard().parameters[piece.parameter].copies)
        if (other != world.rank()) mine.copies[piece.name].push_back(other);
    }
    if (!job->engine.pipeline) mine.checkpoints = checkpoint_bytes(*job);
    const mesh::NamedTensors parameters = train::gather_whole(*job, train::parameter_state(*job));
    const mesh::NamedTensors optimizer = train::gather_whole(*job, train::optimizer_state(*job));

    const std::lock_guard lock(mutex);
    books.ranks[static_cast<size_t>(world.rank())] = std::move(mine);
    if (world.rank() != 0) return;
    books.losses = losses;
    books.elements = job->engine.model->elements();
    books.unit_bytes = unit_bytes(*job);
    books.parameters = by_name(parameters);
    books.optimizer = by_name(optimizer);
  }));
  return books;
}

}  // namespace cairn::study
