// S3T: deletion of training records from a model by switching layers off, exactly. The baseline is SISA, in the same stores.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <random>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/files/recording_disk.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "proofs/s3t_stores.h"
#include "study/claims.h"
#include "study/curves_svg.h"
#include "unlearn/audit.h"
#include "unlearn/capacity.h"
#include "unlearn/delete_records.h"
#include "unlearn/orders.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;
using unlearn::Artifact;
using unlearn::Order;
using unlearn::Store;

// 1. How many deletions it takes until nobody answers.
int64_t requests(int64_t shards, int64_t slices, int64_t budget, const base::Random& stream) {
  const std::vector<std::vector<Order>> orders(static_cast<size_t>(shards), unlearn::cyclic_orders(slices, budget));
  const std::vector<std::vector<bool>> nothing(orders.size(), std::vector<bool>(static_cast<size_t>(slices), false));
  return unlearn::requests_until_dead(orders, nothing, stream);
}

void deletion_rates(const ProofOptions& options, Findings& findings) {
  constexpr uint64_t kTrials = 2000;
  const base::Random random = base::Random(options.seed).for_purpose("deletion streams");
  struct Case {
    int64_t shards, slices, budget;
  };
  double farthest = 0;
  for (const Case& one : {Case{5, 4, 1}, Case{5, 4, 2}, Case{5, 4, 4}, Case{5, 6, 1}, Case{5, 6, 6}, Case{20, 50, 1}, Case{20, 50, 6}}) {
    double sum = 0;
    for (uint64_t trial = 0; trial < kTrials; ++trial)
      sum += static_cast<double>(requests(one.shards, one.slices, one.budget, random.for_index(trial)));
    const double mean = sum / kTrials,
                 formula = unlearn::expected_deletions(one.shards, one.slices, one.shards * std::min(one.budget, one.slices));
    farthest = std::max(farthest, std::abs(mean / formula - 1));
  }
  findings.at_most("1. deletions until nobody answers, 7 shapes: largest distance of the mean of 2,000 streams from m L H(m B')", 0,
                   farthest, 0.03);
  int64_t sooner = 0, later = 0;
  constexpr int64_t kSlices = 4;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const base::Random stream = random.for_purpose("paired").for_index(trial);
    const int64_t sisa = requests(5, kSlices, 1, stream), s3t = requests(5, kSlices, 4, stream);
    sooner += s3t < sisa ? 1 : 0, later += s3t > sisa ? 1 : 0;
  }
  findings.at_most("1. of 2,000 streams, those in which S3T stops answering before SISA", 0, static_cast<double>(sooner), 0);
  findings.at_least("1. share of streams in which it answers longer (1 - 1/L in the mean)", 0.75,
                    static_cast<double>(later) / static_cast<double>(kTrials), 0.72);
}

std::vector<std::string> live_names(const Store& store) {
  const unlearn::Served served = unlearn::served_by(store);
  std::set<std::string> names;
  for (const unlearn::LiveShard& shard : served.shards)
    for (const unlearn::LiveOrder& order : shard.orders)
      for (const Artifact& one : order.chain) names.insert(to_text(one.name));
  return {names.begin(), names.end()};
}

std::vector<std::string> served_names(const Store& store) {
  const unlearn::Served served = unlearn::served_by(store);
  std::vector<std::string> names;
  for (int64_t shard = 0; shard < store.spec().shards; ++shard)
    for (const Artifact& one : served.chain(shard)) names.push_back(to_text(one.name));
  return names;
}

std::string adapter_bytes(const Store& store, const std::string& name) {
  constexpr int64_t kBytesMax = int64_t{1} << 30;
  return base::read_file(store.artifact(name) / "adapter.safetensors", kBytesMax);
}

int64_t differing(const Store& a, const Store& b, const std::vector<std::string>& names) {
  int64_t different = 0;
  for (const std::string& name : names)
    different += !fs::exists(b.artifact(name)) || bytes_of_artifact(a, name) != bytes_of_artifact(b, name) ? 1 : 0;
  return different;
}

// 2. After a deletion every served artifact is bitwise that of a store that never had the record.
void exactness(const S3tStores& stores, const std::string& method, const Store& whole, int64_t record, Findings& findings) {
  const std::vector<std::string> sets{"unlearning.method=" + method};
  const Store without = stores.trained("without-" + method, sets, {record});
  const std::string of = "2. " + method + ": ";
  // What depends on the record does differ, or the comparison shows nothing.
  const unlearn::Place place = whole.spec().partition().place_of(record);
  int64_t dependent = 0, changed = 0;
  for (const std::string& name : live_names(whole)) {
    unlearn::ArtifactName named = *unlearn::parse_artifact_name(name);
    if (!named.depends_on(place.shard, place.slice)) continue;
    named.excluded = 1;
    ++dependent;
    changed += adapter_bytes(whole, name) != adapter_bytes(without, to_text(named)) ? 1 : 0;
  }
  findings.at_least(of + "of the artifacts that depend on the record, those whose adapter it has changed", static_cast<double>(dependent),
                    static_cast<double>(changed), std::max<double>(1, static_cast<double>(dependent)));
  const Store deleted = stores.copy(whole, "deleted-" + method);
  const std::vector<std::string> before = live_names(deleted);
  unlearn::delete_records(deleted, std::vector<int64_t>{record});
  const std::vector<std::string> after = live_names(deleted);
  findings.at_least(of + "artifacts that a deletion takes", 0, static_cast<double>(before.size() - after.size()), 1);
  findings.at_least(of + "artifacts that are served after it", 0, static_cast<double>(served_names(deleted).size()), 1);
  findings.at_most(of + "of these, and of all that are live, those that differ in a byte from the store without the record", 0,
                   static_cast<double>(differing(deleted, without, after)), 0);
  findings.at_most(of + "what an audit finds wrong", 0, static_cast<double>(unlearn::audit(deleted).trouble.size()), 0);
  stores.train(deleted);  // repair
  findings.at_most(of + "after repair: artifacts of one store that the other does not have, or that differ in a byte", 0,
                   static_cast<double>(differing(deleted, without, live_names(without)) + differing(without, deleted, live_names(deleted))),
                   0);
  cli::LanguageModel one = stores.open(deleted), other = stores.open(without);
  const at::Tensor a = stores.predictions(one), b = stores.predictions(other);
  findings.at_most(of + "largest difference of predictions", 0, (a - b).abs().max().item<double>(), 0);
  cli::LanguageModel all = stores.open(whole);
  findings.at_least(of + "and of those with the record (they must differ)", 0, (stores.predictions(all) - b).abs().max().item<double>(),
                    1e-7);
}

// The chains that a store serves when these slices have lost a record, with only so many of its orders.
std::vector<std::vector<Artifact>> chains_after(const Store& store, const std::map<std::string, Artifact>& artifacts,
                                                const unlearn::DeletedCounts& hits, int64_t budget) {
  unlearn::StoreSpec spec = store.spec();
  for (std::vector<Order>& orders : spec.orders)
    orders.resize(static_cast<size_t>(std::min<int64_t>(budget, static_cast<int64_t>(orders.size()))));
  const unlearn::Served served{.deletions = 0, .shards = unlearn::live_shards(spec, hits, artifacts)};
  std::vector<std::vector<Artifact>> chains;
  for (int64_t shard = 0; shard < spec.shards; ++shard) chains.push_back(served.chain(shard));
  return chains;
}

bool anyone_answers(const std::vector<std::vector<Artifact>>& chains) {
  return std::ranges::any_of(chains, [](const auto& chain) { return !chain.empty(); });
}

// A random stream of deletions of records, as counts by slice.
class DeletionStream {
 public:
  DeletionStream(const Store& store, const base::Random& random)
      : partition_(store.spec().partition()),
        random_(random),
        hits_(static_cast<size_t>(store.spec().shards), std::vector<int64_t>(static_cast<size_t>(store.spec().slices), 0)) {}

  const unlearn::DeletedCounts& hits() const { return hits_; }
  void take() {
    const unlearn::Place place =
        partition_.place_of(static_cast<int64_t>(random_.below(drawn_++, static_cast<uint64_t>(partition_.records()))));
    ++hits_[static_cast<size_t>(place.shard)][static_cast<size_t>(place.slice)];
  }

 private:
  unlearn::Partition partition_;
  base::Random random_;
  uint64_t drawn_ = 0;
  unlearn::DeletedCounts hits_;
};

// The trained stores themselves, by what they may serve: deletions until none does.
void capacity_of_stores(const ProofOptions& options, const Store& s3t, const Store& sisa, Findings& findings) {
  constexpr uint64_t kStreams = 2000;
  const auto own = unlearn::read_artifacts(s3t), theirs = unlearn::read_artifacts(sisa);
  const base::Random random = base::Random(options.seed).for_purpose("record streams");
  double sum = 0, sum_sisa = 0;
  int64_t sooner = 0;
  for (uint64_t i = 0; i < kStreams; ++i) {
    DeletionStream stream(s3t, random.for_index(i));
    int64_t count = 0, dead = 0, dead_sisa = 0;
    while (dead == 0) {
      stream.take();
      ++count;
      if (dead_sisa == 0 && !anyone_answers(chains_after(sisa, theirs, stream.hits(), 1))) dead_sisa = count;
      if (!anyone_answers(chains_after(s3t, own, stream.hits(), 4))) dead = count;
    }
    sum += static_cast<double>(dead), sum_sisa += static_cast<double>(dead_sisa);
    sooner += dead_sisa == 0 || dead < dead_sisa ? 1 : 0;
  }
  const double n = kStreams, formula = unlearn::expected_deletions(2, 4, 8);
  findings.at_most("3. the trained store: mean deletions of records until it must be trained again, distance from the formula", formula,
                   std::abs(sum / n / formula - 1), 0.03);
  findings.at_least("3. the same, over SISA's on the same streams", sum_sisa / n, sum / sum_sisa, 1.5);
  findings.at_most("3. of 2,000 streams, those in which SISA would have lasted longer", 0, static_cast<double>(sooner), 0);
}

// 3. What is left of accuracy while slices are deleted.
void retention(const ProofOptions& options, const S3tStores& stores, const Store& s3t, const Store& sisa, Findings& findings,
               base::Log& log) {
  constexpr int64_t kDeletions = 20;
  const uint64_t streams = options.full ? 100 : 20;
  struct Arm {
    std::string name;
    const Store& store;
    int64_t budget;
    std::map<std::string, Artifact> artifacts;
    std::vector<double> curve;
  };
  std::vector<Arm> arms{{"SISA without retraining", sisa, 1, unlearn::read_artifacts(sisa), {}},
                        {"S3T, 1 order", s3t, 1, unlearn::read_artifacts(s3t), {}},
                        {"S3T, 2 orders", s3t, 2, unlearn::read_artifacts(s3t), {}},
                        {"S3T, 4 orders", s3t, 4, unlearn::read_artifacts(s3t), {}}};
  const base::Random random = base::Random(options.seed).for_purpose("retention streams");
  for (Arm& arm : arms) {
    arm.curve.assign(kDeletions + 1, 0.0);
    for (uint64_t i = 0; i < streams; ++i) {
      DeletionStream stream(s3t, random.for_index(i));
      for (size_t k = 0; k <= kDeletions; ++k) {
        arm.curve[k] +=
            stores.accuracy(arm.store, chains_after(arm.store, arm.artifacts, stream.hits(), arm.budget)) / static_cast<double>(streams);
        stream.take();
      }
    }
    log.info("{}: accuracy {:.3f} before, {:.3f} after 5, {:.3f} after 10, {:.3f} after 20 deletions", arm.name, arm.curve[0], arm.curve[5],
             arm.curve[10], arm.curve[20]);
  }
  const auto area = [](const Arm& arm) {
    double sum = 0;
    for (const double one : arm.curve) sum += one;
    return sum;
  };
  const double base = stores.accuracy(s3t, std::vector<std::vector<Artifact>>(2));
  findings.at_least("3. accuracy of the trained store above the base model's", base, arms[3].curve[0] - base, 0.05);
  findings.at_least("3. area under accuracy over 20 deletions: 4 orders over 1 order", area(arms[1]), area(arms[3]) / area(arms[1]), 1.1);
  findings.at_least("3. the same: 2 orders over 1 order", area(arms[1]), area(arms[2]) / area(arms[1]), 1);
  CurvesPicture picture{.title = "Accuracy while records are deleted", .across = "deletions", .up = "accuracy"};
  for (const Arm& arm : arms) {
    Curve& curve = picture.curves.emplace_back(Curve{.label = arm.name, .colour = curve_colour(picture.curves.size()), .points = {}});
    for (size_t k = 0; k < arm.curve.size(); ++k) curve.points.emplace_back(static_cast<double>(k), arm.curve[k]);
  }
  write_curves(options.pictures, "s3t-retention", picture);
}

// 4. From the request to an answer without the record.
void downtime(const S3tStores& stores, const Store& s3t, Findings& findings, base::Log& log) {
  // As many epochs as the published runs have: SISA's cost of a deletion.
  const Store sisa = stores.trained("sisa-15", {"unlearning.method=sisa", "train.epochs=15"});
  const unlearn::Partition partition = s3t.spec().partition();
  double slowest = 0, sum = 0, retraining = 0, reread = 0;
  int64_t deletions = 0;
  for (int64_t slice = 0; slice < 4; ++slice) {
    const std::vector<int64_t> record{partition.records_in({slice % 2, slice}).front()};
    const Store asked = stores.copy(s3t, "asked");
    cli::LanguageModel model = stores.open(asked);
    (void)stores.predictions(model);
    const base::RealClock clock;
    double answered = 0;
    unlearn::delete_records(asked, record, [&](const unlearn::Deleted&) {
      if (!cli::has_new_deletions(model)) return;
      model = stores.open(asked);
      (void)stores.predictions(model);
      answered = base::seconds(clock.now());
    });
    slowest = std::max(slowest, answered > 0 ? answered : INFINITY), sum += answered;
    const Store replayed = stores.copy(sisa, "replayed");
    const base::RealClock replay;
    unlearn::delete_records(replayed, record);
    reread += stores.train(replayed).examples;
    retraining += base::seconds(replay.now());
    ++deletions;
  }
  log.info("a deletion costs SISA {:.0f} records read again and {:.2f} s in the mean; S3T answers after {:.1f} ms", reread / deletions,
           retraining / deletions, 1000 * sum / deletions);
  findings.at_most("4. seconds from a request to predictions without the record, slowest of 4", retraining / deletions, slowest, 0.1);
  findings.at_least("4. SISA's retraining over S3T's answer, means of 4 deletions", 1, retraining / sum, 50);
}

// 5. Layers below a stage are run once for each record.
void cache(const ProofOptions& options, const S3tStores& stores, Findings& findings) {
  const int rounds = options.full ? 5 : 2;
  double with = INFINITY, without = INFINITY;
  int64_t different = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::string> sets{"unlearning.shards=1", "unlearning.slices=4", "unlearning.budget=1", "train.epochs=15"};
    for (const bool cached : {true, false}) {
      std::vector<std::string> own = sets;
      if (!cached) own.emplace_back("unlearning.cache_bytes=0");
      const Store store = stores.make(fmt::format("{}-{}", cached ? "cached" : "uncached", round), own);
      const unlearn::TrainedStage stage = stores.train_stage(store, {{.shard = 0, .slices = {0}}});
      unlearn::write_artifact(store, stage.artifact, stage.tensors, base::real_disk());
      double& best = cached ? with : without;
      best = std::min(best, stage.seconds);
    }
    const Store a(fs::path(options.scratch) / fmt::format("cached-{}", round)),
        b(fs::path(options.scratch) / fmt::format("uncached-{}", round));
    different += bytes_of_artifact(a, "s0-0") != bytes_of_artifact(b, "s0-0") ? 1 : 0;
  }
  findings.at_most("5. first stages whose artifact differs in a byte with and without the cache of frozen layers", 0,
                   static_cast<double>(different), 0);
  findings.at_least("5. seconds of the first of 4 stages without the cache, over those with it", without, without / with, 1.5);
}

// A disk on which the process is killed, by SIGKILL, before one of its operations.
class KillingDisk final : public base::Disk {
 public:
  explicit KillingDisk(int64_t after) : left_(after) {}
  int create(const fs::path& path) const override { return step(), disk_.create(path); }
  int append(const fs::path& path) const override { return step(), disk_.append(path); }
  int open_shared(const fs::path& path) const override { return step(), disk_.open_shared(path); }
  int64_t write(int file, std::span<const std::byte> bytes) const override { return step(), disk_.write(file, bytes); }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    return step(), disk_.write_at(file, bytes, offset);
  }
  int resize(int file, int64_t bytes) const override { return step(), disk_.resize(file, bytes); }
  int sync(int file) const override { return step(), disk_.sync(file); }
  int close(int file) const override { return step(), disk_.close(file); }
  int rename(const fs::path& from, const fs::path& to) const override { return step(), disk_.rename(from, to); }
  int remove(const fs::path& path) const override { return step(), disk_.remove(path); }
  int sync_folder(const fs::path& folder) const override { return step(), disk_.sync_folder(folder); }
  int64_t free_bytes(const fs::path& folder) const override { return disk_.free_bytes(folder); }

 private:
  void step() const {
    if (left_-- == 0) ::kill(::getpid(), SIGKILL);
  }
  const base::Disk& disk_ = base::real_disk();
  mutable int64_t left_;
};

// Whether something that is served depends on this record.
bool serves(const Store& store, int64_t record) {
  const unlearn::Place place = store.spec().partition().place_of(record);
  for (const std::string& name : served_names(store))
    if (unlearn::parse_artifact_name(name)->depends_on(place.shard, place.slice)) return true;
  return false;
}

// 6. kill -9 before every operation of a deletion; and machines that die.
void kills(const ProofOptions& options, const S3tStores& stores, const Store& whole, int64_t record, Findings& findings) {
  int64_t killed = 0, between = 0, served = 0, unclean = 0;
  for (int64_t after = 0;; ++after) {
    const Store store = stores.copy(whole, "killed");
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        unlearn::delete_records(store, std::vector<int64_t>{record}, {}, KillingDisk(after));
      } catch (...) {
        ::_exit(3);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) break;  // there was no such operation any more
    ++killed;
    if (store.deleted().empty()) continue;  // the request was not answered: nothing was deleted
    between += unlearn::leftovers(store) != unlearn::Purged{} ? 1 : 0;
    served += serves(store, record) ? 1 : 0;
    unlearn::purge(store);
    unclean += unlearn::audit(store).trouble.empty() ? 0 : 1;
  }
  findings.at_least("6. processes killed by kill -9, one before each file operation of a deletion", 0, static_cast<double>(killed), 10);
  findings.at_least("6. of these, between the log and the end of the switch", 0, static_cast<double>(between), 5);
  findings.at_most("6. stores that then serve what was deleted", 0, static_cast<double>(served), 0);
  findings.at_most("6. stores that are not clean after the next command", 0, static_cast<double>(unclean), 0);

  const Store store = stores.copy(whole, "crashed");
  const base::RecordingDisk disk(store.folder());
  size_t answered = 0;
  unlearn::delete_records(
      store, std::vector<int64_t>{record}, [&](const unlearn::Deleted&) { answered = disk.changes(); }, disk);
  std::mt19937_64 random(options.seed);
  int64_t states = 0, wrong = 0;
  for (const int64_t trials = options.full ? 1000 : 200; states < trials; ++states) {
    const size_t done = random() % (disk.changes() + 1);
    const fs::path left = fs::path(options.scratch) / "left";
    fs::remove_all(left);
    disk.after_crash(
        done, base::RecordingDisk::Dies::machine, [&] { return random(); }, left);
    for (const char* folder : {"work", "artifacts", "slices"}) fs::create_directories(left / folder);
    try {
      const Store restarted(left);
      const bool deleted = !restarted.deleted().empty();
      wrong += (done >= answered && !deleted) || (deleted && serves(restarted, record)) ? 1 : 0;
    } catch (const Error&) {
      ++wrong;
    }
  }
  findings.at_most(fmt::format("6. machines that die: of {} states of the disk, those that serve what was deleted, or forget it", states),
                   0, static_cast<double>(wrong), 0);
}

// Stages on other layouts; and that nothing frozen is sent.
void layouts(const ProofOptions& options, const S3tStores& stores, Findings& findings) {
  struct Layout {
    std::string name;
    int ranks;
    std::vector<std::string> sets;
    double tolerance;
  };
  const std::vector<std::string> short_run{"unlearning.shards=1", "unlearning.budget=1", "unlearning.slices=2", "train.epochs=1"};
  const auto losses = [&](const Layout& layout) {
    std::vector<std::string> sets = short_run;
    sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
    const Store store = stores.make("layout-" + layout.name, sets);
    stores.train(store, layout.ranks);
    std::vector<double> found;
    for (const auto& [name, artifact] : unlearn::read_artifacts(store)) found.push_back(artifact.loss);
    return found;
  };
  const std::vector<double> one = losses({"1", 1, {}, 0});
  for (const Layout& layout :
       {Layout{"dp=4", 4, {"mesh.dp=4"}, 1e-5}, Layout{"dp=4, ZeRO 1", 4, {"mesh.dp=4", "memory.zero=1"}, 1e-5},
        Layout{"dp=4, ZeRO 2", 4, {"mesh.dp=4", "memory.zero=2"}, 1e-5}, Layout{"dp=4, ZeRO 3", 4, {"mesh.dp=4", "memory.zero=3"}, 1e-5},
        Layout{"pp=2", 2, {"mesh.pp=2", "train.micro_batch=5"}, 1e-5}, Layout{"tp=2", 2, {"mesh.tp=2"}, 1e-5},
        Layout{"recomputation", 1, {"recompute.mode=full"}, 1e-5}, Layout{"bf16", 1, {"train.precision=bf16"}, 0.02}})
    findings.at_most(fmt::format("7. {}: largest relative difference of stages' losses to one rank", layout.name), 0,
                     largest_relative_difference(losses(layout), one), layout.tolerance);

  const Store store = stores.make("sent", {"unlearning.shards=1", "unlearning.budget=1", "mesh.dp=2"});
  const unlearn::ArtifactName second{.shard = 0, .slices = {0, 1}};
  const fs::path records = fs::path(options.scratch) / "records.jsonl";
  const RunStats stats = collect_stats({.recipe = unlearn::recipe_of_stage(store, second, records, 2), .ranks = 2, .steps = 3});
  int64_t trained = 0;
  for (const auto& [name, value] : stats.ranks[0].kept)
    if (name.find(".lora_") != std::string::npos && (name.starts_with("model.layers.5.") || name.starts_with("model.layers.4.")))
      trained += value.numel();
  findings.at_most("7. bytes of gradients that a rank sends in a step of stage 2, over those of its own adapters",
                   static_cast<double>(4 * trained),
                   static_cast<double>(stats.ranks[0].sent.at(comm::Purpose::gradient)) / static_cast<double>(4 * trained), 1.0);

  // A job that was killed between two stages, and goes on.
  const Store straight(fs::path(options.scratch) / "layout-1");
  const Store resumed = stores.copy(straight, "resumed");
  fs::remove_all(resumed.artifact("s0-0.1"));
  stores.train(resumed);
  findings.at_most("7. killed and resumed: artifacts that differ in a byte", 0,
                   static_cast<double>(differing(straight, resumed, live_names(straight))), 0);
}

}  // namespace

void prove_s3t(const ProofOptions& options, Findings& findings, base::Log& log) {
  deletion_rates(options, findings);
  const S3tStores stores(options, log);
  const auto record =
      static_cast<int64_t>(base::Random(options.seed).for_purpose("the record").below(0, static_cast<uint64_t>(stores.records())));
  const Store s3t = stores.trained("s3t", {}), sisa = stores.trained("sisa", {"unlearning.method=sisa"});
  exactness(stores, "s3t", s3t, record, findings);
  exactness(stores, "sisa", sisa, record, findings);
  capacity_of_stores(options, s3t, sisa, findings);
  retention(options, stores, s3t, sisa, findings, log);
  downtime(stores, s3t, findings, log);
  cache(options, stores, findings);
  kills(options, stores, s3t, record, findings);
  layouts(options, stores, findings);
}

}  // namespace cairn::study
