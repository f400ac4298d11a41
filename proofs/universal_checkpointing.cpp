// Universal checkpointing (arXiv 2406.18820): saved in whatever layout a run trains in, resumed in any other.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "proofs/crash_trials.h"
#include "proofs/layout_run.h"
#include "snapshot/diff.h"
#include "snapshot/snapshot.h"
#include "study/claims.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/reshape.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSaved = 20, kContinued = 20;  // steps before the snapshot, and after it

struct Layout {
  std::string name;
  int ranks = 1;
  Assignments sets = {};
};

const Layout kSource{"tp=2,pp=2,dp=2, ZeRO 1", 8, {"mesh.tp=2", "mesh.pp=2", "memory.zero=1"}};

std::vector<Layout> targets() {
  return {{"1 process", 1, {}},
          {"tp=4", 4, {"mesh.tp=4"}},
          {"pp=4", 4, {"mesh.pp=4"}},
          {"dp=3, ZeRO 3", 3, {"memory.zero=3"}},
          {"tp=2,dp=3", 6, {"mesh.tp=2"}},
          {"pp=3,dp=2", 6, {"mesh.pp=3"}},
          {"cp=2,tp=2, ZeRO 3", 4, {"mesh.cp=2", "mesh.tp=2", "memory.zero=3"}},
          {"dp=5, ZeRO 2", 5, {"memory.zero=2"}},
          {"dp=7, ZeRO 3", 7, {"memory.zero=3"}}};
}

// The sheet's model: 4 layers, d = 64, 4 heads, 2 key heads, feed-forward width 172, 257 tokens, AdamW, fp32.
base::Recipe tiny_llama(const ProofOptions& options, const Assignments& layout, const Assignments& more = {}) {
  return with(with(small_decoder(options, {"model.layers=4", "model.embed=64", "model.heads=4", "model.kv_heads=2", "model.mlp=172",
                                           "train.global_batch=6", fmt::format("train.steps={}", kSaved + kContinued),
                                           fmt::format("snapshot.every={}", kSaved), "snapshot.keep=9", "data.sampler=sequential"}),
                   layout),
              more);
}

void rethrow(const std::vector<std::exception_ptr>& ended) {
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
}

// Steps of the trainer; the losses of all of them. Saves into the run directory after `save_after` steps.
struct Steps {
  base::Recipe recipe;
  int ranks = 1;
  fs::path run = {};
  bool resume = false;
  int64_t steps = kContinued, save_after = 0;
  std::function<void(train::Job&, comm::World&)> spoil = {};  // after the snapshot is loaded
};
std::vector<double> losses_of(const Steps& of) {
  std::vector<double> losses;
  std::mutex mutex;
  rethrow(comm::LocalNetwork(of.ranks).run([&](comm::World& world) {
    train::Start start;
    start.out = of.run;
    start.resume = of.resume;
    const std::unique_ptr<train::Job> job = train::build(world, of.recipe, start, {});
    if (of.spoil) of.spoil(*job, world);
    if (of.save_after > 0 && world.rank() == 0) train::open_run_folder(job->config.out, *job);
    std::vector<double> own;
    for (int64_t i = 0; i < of.steps; ++i) {
      const train::TakenStep taken = train::take_step(*job);
      ++job->progress.steps_done;
      job->progress.tokens_done += taken.tokens;
      const at::Tensor loss = taken.output.loss_sum.to(at::kDouble).clone();
      world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
      own.push_back(loss.item<double>() / static_cast<double>(taken.loss_denominator));
      if (job->progress.steps_done != of.save_after) continue;
      train::SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
      writer.save();
      writer.finish();
      writer.rethrow_failure();
    }
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) losses = std::move(own);
  }));
  return losses;
}

std::vector<double> after_snapshot(const std::vector<double>& all) { return {all.begin() + kSaved, all.end()}; }

fs::path newest(const fs::path& run) { return snapshot::find_latest(run.string()).value(); }

void reshape_into(const fs::path& from, const fs::path& to, const base::Recipe& recipe, int ranks) {
  train::copy_run(from, kSaved, to);
  train::Start start;
  start.out = to;
  rethrow(comm::LocalNetwork(ranks).run([&](comm::World& world) { train::reshape(world, recipe, start); }));
}

// Tensors, and files beside those that describe the layout, that differ.
int64_t differences(const fs::path& a, const fs::path& b) {
  const snapshot::SnapshotDiff found = snapshot::diff(snapshot::open(newest(a)), snapshot::open(newest(b)));
  return found.tensors == 0 ? INT64_MAX : static_cast<int64_t>(found.tensors_differ.size() + found.texts_differ.size());
}

// Tensors that are not bitwise the same.
int64_t unlike(const Tensors& a, const Tensors& b) {
  int64_t count = a.size() == b.size() ? 0 : 1;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    count += other == b.end() || !at::equal(tensor, other->second.view(tensor.sizes()));
  }
  return count;
}

// 1. Every layout, as a source: what its ranks have saved is what a gather of all tensors gives, which uses none of this.
void round_trips(const ProofOptions& options, const fs::path& source, Findings& findings, base::Log& log) {
  const Tensors weights = snapshot_tensors(source, "model"), moments = snapshot_tensors(source, "optimizer");
  int64_t wrong = 0, reshaped = 0, tensors = 0;
  std::vector<Layout> all = targets();
  all.insert(all.begin(), kSource);
  for (const Layout& layout : all) {
    log.info("round trips: {}", layout.name);
    const base::Recipe recipe = tiny_llama(options, layout.sets);
    const fs::path out = fs::path(options.scratch) / ("to-" + std::to_string(&layout - all.data()));
    reshape_into(source, out, recipe, layout.ranks);
    reshaped += differences(source, out);
    const RunStats gathered = collect_stats({recipe, layout.ranks, 0, out});
    wrong += unlike(gathered.parameters, snapshot_tensors(out, "model")) + unlike(gathered.optimizer, snapshot_tensors(out, "optimizer")) +
             unlike(gathered.parameters, weights) + unlike(gathered.optimizer, moments);
    tensors += static_cast<int64_t>(weights.size() + moments.size());
  }
  findings.at_most(fmt::format("1. {} layouts as sources: weights and moments that differ from a gather of them by brute force, of {}",
                               all.size(), tensors),
                   0, static_cast<double>(wrong), 0);
  findings.at_most(fmt::format("1. from {} to {} layouts: differences by snapshot diff", kSource.name, all.size()), 0,
                   static_cast<double>(reshaped), 0);
  findings.skip("1. experts: ep=4 to ep=2 to ep=1", "there are no expert layers yet");
}

// Weights and moments as a reader would have them that takes ceil-chunks (58, 58, 56) for the balanced parts (58, 57, 57) that 3 ranks
// wrote of the feed-forward width.
at::Tensor mixed_up(const at::Tensor& whole) {
  at::Tensor result = whole.clone();
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (whole.size(dim) != 172) continue;
    result = at::zeros_like(whole);
    result.narrow(dim, 0, 115).copy_(whole.narrow(dim, 0, 115));
    result.narrow(dim, 116, 56).copy_(whole.narrow(dim, 115, 56));
  }
  return result;
}

void write_mixed_up(const fs::path& source, const fs::path& to) {
  const snapshot::OpenSnapshot from = snapshot::open(newest(source));
  snapshot::Contents contents{.step = from.step(), .tensors = {}, .texts = from.texts(), .version = from.manifest().version};
  for (const std::string& section : from.sections())
    for (const snapshot::TensorEntry& entry : from.entries(section))
      contents.tensors[section].push_back({entry.name, mixed_up(from.tensor(section, entry.name))});
  fs::create_directories(to);
  fs::copy(source / "recipe.toml", to / "recipe.toml");
  snapshot::save(to.string(), contents, {}, base::real_disk());
}

// 2. The next 20 losses.
void continuations(const ProofOptions& options, const fs::path& source, const std::vector<double>& uninterrupted, Findings& findings,
                   base::Log& log) {
  const auto continued = [&](const Layout& layout, const fs::path& run, std::function<void(train::Job&, comm::World&)> spoil = {}) {
    log.info("continuation: {}", layout.name);
    return largest_relative_difference(
        uninterrupted, losses_of({tiny_llama(options, layout.sets), layout.ranks, run, true, kContinued, 0, std::move(spoil)}));
  };
  findings.at_most(fmt::format("2. {}: next {} losses in the same layout, relative difference", kSource.name, kContinued), 0,
                   continued(kSource, source), 0);
  for (const Layout& layout : targets())
    findings.at_most(fmt::format("2. {} to {}: next {} losses, relative difference", kSource.name, layout.name, kContinued), 0,
                     continued(layout, source), 1e-5);
  const Layout one = targets()[0];
  findings.at_least("2. fake: moments that are not restored, relative difference", 1e-5,
                    continued(one, source,
                              [](train::Job& job, comm::World&) {
                                for (const mesh::NamedTensor& moment : job.engine.optimizer->state()) moment.tensor.zero_();
                              }),
                    1e-3);
  write_mixed_up(source, fs::path(options.scratch) / "mixed-up");
  findings.at_least("2. fake: ceil-chunks for balanced parts of the width 172 over tp=3, relative difference", 1e-5,
                    continued(one, fs::path(options.scratch) / "mixed-up"), 3e-5);
}

// 2. Random numbers follow from seed, step and position, so dropout survives another layout.
void dropout(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("continuation with dropout");
  const Assignments drops{"model.dropout=0.1"};
  const fs::path run = fs::path(options.scratch) / "dropout";
  const std::vector<double> uninterrupted =
      after_snapshot(losses_of({tiny_llama(options, kSource.sets, drops), kSource.ranks, run, false, kSaved + kContinued, kSaved}));
  const Layout three{"dp=3, ZeRO 3", 3, {"memory.zero=3"}};
  const auto continued = [&](std::function<void(train::Job&, comm::World&)> spoil = {}) {
    return largest_relative_difference(
        uninterrupted, losses_of({tiny_llama(options, three.sets, drops), three.ranks, run, true, kContinued, 0, std::move(spoil)}));
  };
  findings.at_most(fmt::format("2. dropout 0.1, {} to {}: next losses, relative difference", kSource.name, three.name), 0, continued(),
                   1e-5);
  findings.at_least("2. fake: random numbers of each rank's own, relative difference", 1e-5,
                    continued([](train::Job& job, comm::World& world) {
                      job.engine.random = job.engine.random.for_index(static_cast<uint64_t>(1000 + world.rank()));
                    }),
                    1e-4);
}

// "Must show": other kinds of state. A to B to C to A, and what B makes of it.
void kinds_of_state(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path scratch = options.scratch;
  const Layout a{"dp=3, ZeRO 3", 3, {"memory.zero=3"}}, b{"tp=2,pp=2", 4, {"mesh.tp=2", "mesh.pp=2"}},
      c{"dp=5, ZeRO 1", 5, {"memory.zero=1"}};
  train_layout({tiny_llama(options, {}, {"train.steps=1", "snapshot.every=1"}), 1, scratch / "base"});
  const std::vector<std::pair<std::string, Assignments>> kinds{
      {"plain", {}},
      {"bf16", {"train.precision=bf16", "train.parameters=bf16"}},
      {"documents", {"data.packing=documents"}},
      {"lora", {"model.from=" + (scratch / "base").string(), "model.lora.rank=4", R"(model.lora.targets=["q_proj", "down_proj"])"}},
      {"frozen", {R"(model.train=["*norm*", "*layers.1*"])"}},
      {"muon", {"optim.kind=muon"}},
      {"adafactor", {"optim.kind=adafactor"}}};
  for (const auto& [name, sets] : kinds) {
    log.info("state of {}", name);
    const auto recipe = [&, &more = sets](const Layout& layout) { return tiny_llama(options, layout.sets, more); };
    const fs::path run = scratch / name;
    const std::vector<double> uninterrupted = after_snapshot(losses_of({recipe(a), a.ranks, run, false, kSaved + kContinued, kSaved}));
    reshape_into(run, scratch / (name + "-b"), recipe(b), b.ranks);
    reshape_into(scratch / (name + "-b"), scratch / (name + "-c"), recipe(c), c.ranks);
    reshape_into(scratch / (name + "-c"), scratch / (name + "-a"), recipe(a), a.ranks);
    findings.at_most(fmt::format("3. {}: {} to {} to {} and back: differences", name, a.name, b.name, c.name), 0,
                     static_cast<double>(differences(run, scratch / (name + "-a"))), 0);
    findings.at_most(fmt::format("2. {}: next losses in the same layout, relative difference", name), 0,
                     largest_relative_difference(uninterrupted, losses_of({recipe(a), a.ranks, scratch / (name + "-a"), true})), 0);
    const double moved = largest_relative_difference(uninterrupted, losses_of({recipe(b), b.ranks, run, true}));
    findings.at_most(fmt::format("2. {}: {} to {}: next losses, relative difference{}", name, a.name, b.name,
                                 name == "bf16" ? " (sums of bf16 depend on the layout)" : ""),
                     0, moved, name == "bf16" ? 1e-3 : 1e-5);
  }
}

// Islands have a snapshot each, and change their layout inside.
void islands(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("islands");
  const fs::path scratch = options.scratch;
  const Assignments apart{"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=4"};
  const auto recipe = [&](const Assignments& sets) { return tiny_llama(options, sets, apart); };
  const Trained whole = train_layout({recipe({"memory.zero=1"}), 4, scratch / "islands"});
  double largest = 0;
  for (const auto& [ranks, sets] :
       {std::pair{4, Assignments{"memory.zero=1"}}, std::pair{4, Assignments{"mesh.tp=2"}}, std::pair{6, Assignments{"memory.zero=3"}}}) {
    const fs::path copy = scratch / fmt::format("islands-{}-{}", ranks, sets[0]);
    copy_up_to(scratch / "islands", copy, kSaved);
    fs::remove_all(copy / "island-1/snapshots" / fmt::format("step-{:08}", kSaved + kContinued));
    const double found = largest_relative_difference(whole.losses, train_layout({recipe(sets), ranks, copy, true}).losses);
    if (ranks == 4 && sets[0] == "memory.zero=1")
      findings.at_most("2. 2 islands of 2: next losses in the same layout, relative difference", 0, found, 0);
    largest = std::max(largest, found);
  }
  findings.at_most("2. 2 islands of dp=2 to islands of tp=2 and of dp=3: next losses, relative difference", 0, largest, 1e-5);
}

// 4. Damage is refused, with the tensor and the file.
void corruption(const ProofOptions& options, const fs::path& source, Findings& findings, base::Log& log) {
  log.info("corruption");
  const fs::path run = fs::path(options.scratch) / "damaged";
  std::mt19937_64 random(options.seed);
  int64_t refused = 0, named = 0, tried = 0;
  const auto attempt = [&](const std::string& file, const std::string& tensor, const std::function<void(const fs::path&)>& act) {
    fs::remove_all(run);
    fs::create_directories(run / "snapshots");
    fs::copy(source / "recipe.toml", run / "recipe.toml");
    fs::copy(newest(source), run / "snapshots" / newest(source).filename(), fs::copy_options::recursive);
    act(newest(run) / file);
    ++tried;
    try {
      losses_of({tiny_llama(options, {"mesh.tp=2"}), 2, run, true, 1});
    } catch (const Error& error) {
      const std::string said = error.what();
      refused += error.kind() == Error::Kind::corrupt_file;
      named += said.find(file) != std::string::npos && said.find(tensor) != std::string::npos;
    }
  };
  std::vector<std::string> files{"model.safetensors"};
  for (int rank = 0; rank < kSource.ranks; ++rank) files.push_back(fmt::format("training/rank-{:05}.safetensors", rank));
  for (const std::string& file : files) {
    const snapshot::Safetensors opened((newest(source) / file).string());
    const snapshot::TensorEntry entry = opened.entries()[random() % opened.entries().size()];
    const std::string tensor = entry.name.substr(entry.name.find('/') + 1);
    const auto at =
        static_cast<std::streamoff>(entry.begin + static_cast<int64_t>(random() % static_cast<uint64_t>(entry.end - entry.begin)));
    attempt(file, tensor, [&](const fs::path& path) {
      std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(at);
      const auto changed = static_cast<char>(bytes.get() ^ (1 << (random() % 8)));
      bytes.seekp(at);
      bytes.put(changed);
    });
    attempt(file, opened.entries().back().name.substr(opened.entries().back().name.find('/') + 1),
            [&](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1 - random() % 3); });
    if (file.starts_with("training/")) attempt(file, "exp_avg", [&](const fs::path& path) { fs::remove(path); });
  }
  findings.at_least(fmt::format("4. bits flipped, files cut and deleted: refused, of {}", tried), static_cast<double>(tried),
                    static_cast<double>(refused), static_cast<double>(tried));
  findings.at_least("4. the same: refusals that name the tensor and the file", static_cast<double>(tried), static_cast<double>(named),
                    static_cast<double>(tried));
}

// What all threads of this process have read by read() and pread().
double bytes_read_by_process() {
  std::ifstream file("/proc/self/io");
  std::string word;
  double bytes = 0;
  file >> word >> bytes;
  return bytes;
}

// 5. Bytes over the network, and from the disk, with a state of more than 64 MB.
void bytes(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("bytes");
  const Assignments large{"model.embed=384", "model.mlp=1111", "model.heads=6", "model.kv_heads=6"};
  const fs::path run = fs::path(options.scratch) / "large";
  double sent = 0;
  std::mutex mutex;
  rethrow(comm::LocalNetwork(8).run([&](comm::World& world) {
    train::Start start;
    start.out = run;
    const std::unique_ptr<train::Job> job = train::build(world, tiny_llama(options, kSource.sets, large), start, {});
    if (world.rank() == 0) train::open_run_folder(job->config.out, *job);
    job->progress.steps_done = kSaved;
    job->engine.store->wait_for_gathers();
    world.everyone().barrier("ready").wait_host();
    const int64_t before = world.ledger().total().bytes;
    train::SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
    writer.save();
    writer.finish();
    writer.rethrow_failure();
    const std::lock_guard lock(mutex);
    sent += static_cast<double>(world.ledger().total().bytes - before);
  }));
  double state = 0;
  const snapshot::OpenSnapshot opened = snapshot::open(newest(run));
  for (const auto& [name, file] : opened.manifest().files)
    if (name.ends_with(".safetensors")) state += static_cast<double>(file.bytes);
  findings.at_most(fmt::format("5. a save of {:.0f} MB by 8 ranks: bytes sent, as a share of it (ledger)", state / 1e6), 1, sent / state,
                   0.01);
  std::vector<Layout> all = targets();
  all.push_back(kSource);
  double most = 0, least = INFINITY;
  for (const Layout& layout : all) {
    const double before = bytes_read_by_process();
    if (layout.name == "tp=4") continue;  // 6 heads
    losses_of({tiny_llama(options, layout.sets, large), layout.ranks, run, true, 0});
    const double read = (bytes_read_by_process() - before) / state;
    log.info("bytes: {} reads {:.3f} of the state", layout.name, read);
    most = std::max(most, read);
    least = std::min(least, read);
  }
  findings.at_most("5. loads in 9 layouts: bytes that all ranks together read, over the state (/proc/self/io)", 1, most, 1.1);
  findings.at_least("5. the same, the least: it is read by positioned reads, not through a map", 1, least, 0.9);
  findings.skip("5. peak memory of a conversion", "there is none: ranks read the source's own files, piece by piece");
}

void crashes(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("crash states");
  const int64_t states = options.full ? 20'000 : 600;
  const CrashOutcome found = try_crashes({.scratch = fs::path(options.scratch) / "crashes", .seed = options.seed, .states = states});
  for (const std::string& wrong : found.wrong) log.warn("{}", wrong);
  findings.at_most(
      fmt::format("crash states of the writer ({} saves of 1 to 4 ranks; {} find the old snapshot, {} the new one): neither, of {}",
                  found.saves, found.old_found, found.new_found, found.states),
      0, static_cast<double>(found.wrong.size()), 0);
  const CrashOutcome lied =
      try_crashes({.scratch = fs::path(options.scratch) / "lies", .seed = options.seed, .states = 300, .disk_lies = true});
  findings.at_least("fake: the same on a disk that does not sync: states that are found out, of 300", 0,
                    static_cast<double>(lied.wrong.size()), 1);
}

}  // namespace

void prove_universal_checkpointing(const ProofOptions& options, Findings& findings, base::Log& log) {
  const fs::path source = fs::path(options.scratch) / "source";
  const std::vector<double> losses =
      losses_of({tiny_llama(options, kSource.sets), kSource.ranks, source, false, kSaved + kContinued, kSaved});
  round_trips(options, source, findings, log);
  continuations(options, source, after_snapshot(losses), findings, log);
  dropout(options, findings, log);
  kinds_of_state(options, findings, log);
  islands(options, findings, log);
  corruption(options, source, findings, log);
  bytes(options, findings, log);
  crashes(options, findings, log);
  findings.skip("6. 1.3 B parameters, save and load against raw writes and reads of the same bytes",
                "needs an H200; cairn bench snapshot measures both here at a smaller size");
}

}  // namespace cairn::study
