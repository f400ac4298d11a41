// Reliable and Efficient In-Memory Fault Tolerance of Large Language Model Pretraining (REFT): snapshots in the memory of processes that
// outlive the ranks, parity across nodes. Four nodes on this machine: a keeper, an agent and a rank of `cairn train` each, killed from
// outside. Losses are compared with those of a run that nothing happened to.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "proofs/in_memory_ft_nodes.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

using Losses = std::map<int64_t, double>;

constexpr int kNodes = 4;
constexpr double kParityRoom = 64 << 10;
constexpr int kGenerationsMax = 80;

std::vector<std::string> recipe(int64_t steps) {
  std::vector<std::string> sets;
  for (const char* one : {"model.layers=2",        "model.embed=96",        "model.heads=4",           "model.kv_heads=4",
                          "model.mlp=256",         "data.tokenizer=bytes",  "data.length=16",          "data.stories_bytes=200000",
                          "train.global_batch=12", "train.precision=fp32",  "optim.warmup_steps=4",    "eval.every=0",
                          "eval.samples=200",      "snapshot.every=0",      "snapshot.last=false",     "log.samples=0",
                          "log.trace=false",       "log.tensorboard=false", "snapshot.memory.every=1", "snapshot.memory.same_host=true"})
    sets.emplace_back(one);
  sets.push_back(fmt::format("train.steps={}", steps));
  return sets;
}

std::vector<int> all_nodes() {
  std::vector<int> nodes(kNodes);
  std::iota(nodes.begin(), nodes.end(), 0);
  return nodes;
}

// How many steps have another loss; those that are missing count.
double different(const Losses& expected, const Losses& found, double tolerance) {
  double count = 0;
  for (const auto& [step, loss] : expected) {
    const auto same = found.find(step);
    count += same == found.end() || std::abs(same->second - loss) > tolerance ? 1 : 0;
  }
  return count;
}

bool ended_well(const std::vector<int>& codes) {
  return std::all_of(codes.begin(), codes.end(), [](int code) { return code == 0; });
}

// What happened in a run with losses of ranks and nodes.
struct Trials {
  int trials = 0, from_memory = 0;
  int64_t lost_steps_max = 0;
  double load_s_max = 0;
};

class InMemoryProof {
 public:
  InMemoryProof(const ProofOptions& options, Findings& findings, base::Log& log) : options_(options), findings_(findings), log_(log) {}

  void run() {
    const int64_t trials = options_.full ? 30 : 3;
    undisturbed(trials);
    software(trials);
    nodes(trials);
    beyond();
    elastic();
    overhead();
    findings_.skip("7. 1.3 billion parameters on an H200: at most 3 % of throughput, restored in at most 20 s", "needs a GPU");
  }

 private:
  NodeRun make(const std::string& name, const std::vector<std::string>& sets) {
    log_.info("{}", name);
    return NodeRun(options_.program, std::filesystem::path(options_.scratch) / name, kNodes, sets);
  }
  int64_t draw(int64_t bound) { return static_cast<int64_t>(generator_() % static_cast<uint64_t>(bound)); }

  void undisturbed(int64_t trials) {
    steps_ = 8 * (trials + 2) + 10;
    NodeRun run = make("undisturbed", recipe(steps_));
    if (!ended_well(run.run(all_nodes()))) throw Error(Error::Kind::broken_invariant, "the undisturbed run failed: " + run.log());
    losses_ = run.losses();
  }

  // Runs to the end, with a disturbance in each of `trials` generations, some steps after it was restored.
  Trials disturbed(NodeRun& run, int64_t trials, const std::function<void(int64_t trial)>& disturb,
                   const std::function<void(int64_t trial)>& between = {}) {
    Trials result;
    int64_t at = 4 + draw(4);
    for (int generation = 0; generation < kGenerationsMax; ++generation) {
      bool done = result.trials >= trials;
      const std::vector<int> codes = run.run(all_nodes(), [&](int64_t step, double) {
        if (done || step < at) return;
        done = true;
        disturb(result.trials);
        ++result.trials;
      });
      if (generation > 0 && run.restored("source") == "memory") ++result.from_memory;
      if (generation > 0) {
        result.lost_steps_max = std::max(result.lost_steps_max, before_ - std::stol(run.restored("step")));
        result.load_s_max = std::max(result.load_s_max, std::stod(run.restored("load_s")));
      }
      if (ended_well(codes)) return result;
      before_ = run.last_step();
      if (between) between(result.trials - 1);
      at = before_ + 3 + draw(4);
    }
    throw Error(Error::Kind::broken_invariant, "the run does not end: " + run.log());
  }

  void report(const std::string& what, const NodeRun& run, const Trials& trials) {
    findings_.at_least(what + ": restored from memory, of so many losses", trials.trials, trials.from_memory, trials.trials);
    findings_.at_most(what + ": most steps lost", 0, static_cast<double>(trials.lost_steps_max), 2);
    findings_.at_most(fmt::format("{}: of {} losses, those that are not bitwise equal to the undisturbed run's", what, losses_.size()), 0,
                      different(losses_, run.losses(), 0), 0);
    findings_.at_most(what + ": snapshots on disk that could have been read", 0, base::path_exists(run.folder() / "snapshots") ? 1 : 0, 0);
  }

  // 1.
  void software(int64_t trials) {
    NodeRun run = make("ranks are killed", recipe(steps_));
    const Trials done = disturbed(run, trials, [&](int64_t trial) {
      const int64_t one = draw(kNodes);
      for (int rank = 0; rank < kNodes; ++rank)
        if (trial % 2 == 1 || rank == one) run.kill_rank(rank);
    });
    report("1. a rank, or all, killed", run, done);
  }

  // 2 and 6.
  void nodes(int64_t trials) {
    NodeRun run = make("nodes are killed", recipe(steps_));
    double excess = -1;
    int64_t flips = 0;
    const Trials done = disturbed(
        run, trials + 2,
        [&](int64_t trial) {
          if (trial == 0) {
            for (int node = 0; node < kNodes; ++node) {
              const std::vector<int64_t> data = run.segments(node, "cairn-data"), parity = run.segments(node, "cairn-parity");
              if (data.empty() || parity.size() != data.size()) throw Error(Error::Kind::broken_invariant, "a keeper without buffers");
              for (size_t i = 0; i < data.size(); ++i)
                excess = std::max(excess, static_cast<double>(parity[i]) - static_cast<double>(data[i]) / (kNodes - 1));
            }
          }
          if (trial < trials)
            run.kill_node(static_cast<int>(draw(kNodes)));
          else
            for (int rank = 0; rank < kNodes; ++rank) run.kill_rank(rank);
        },
        [&](int64_t trial) {
          if (trial < trials) return;
          run.flip_byte(static_cast<int>(draw(kNodes)), 100'000 + draw(1'000'000));
          ++flips;
        });
    report("2. a node's rank and keeper killed", run, done);
    findings_.at_most("2. parity of a node and version, bytes beyond 1/(n-1) of its data", 0, excess, kParityRoom);
    const std::string log = run.log();
    int64_t repaired = 0;
    for (size_t at = 0; (at = log.find("damaged blocks in its memory: rebuilt from parity", at)) != std::string::npos; ++at) ++repaired;
    findings_.at_least("6. bytes flipped in clean buffers: found, rebuilt from parity and logged", static_cast<double>(flips),
                       static_cast<double>(repaired), static_cast<double>(flips));
  }

  // 3.
  void beyond() {
    for (const bool disk : {true, false}) {
      std::vector<std::string> sets = recipe(24);
      if (disk) sets.push_back("snapshot.every=8");
      NodeRun run = make(disk ? "two nodes lost, with a disk" : "two nodes lost, without a disk", sets);
      bool done = false;
      run.run(all_nodes(), [&](int64_t step, double) {
        if (step < 12 || std::exchange(done, true)) return;
        run.kill_node(1);
        run.kill_node(3);
      });
      const std::vector<int> codes = run.run(all_nodes());
      const bool named = run.log().find("nodes 1, 3 of 4 are lost; snapshot.memory.parity = xor covers one") != std::string::npos;
      findings_.at_least(fmt::format("3. two of four nodes lost, {}: the message names them", disk ? "disk" : "no disk"), 1, named ? 1 : 0,
                         1);
      if (disk) {
        findings_.at_least("3. two of four nodes lost, disk: restored from step", 8,
                           run.restored("source") == "disk" ? std::stod(run.restored("step")) : -1, 8);
        findings_.at_least("3. two of four nodes lost, disk: ranks that end well", kNodes,
                           static_cast<double>(std::count(codes.begin(), codes.end(), 0)), kNodes);
      } else {
        findings_.at_least("3. two of four nodes lost, no disk: ranks that refuse (code 2), or lose one that has (4)", kNodes,
                           static_cast<double>(std::count(codes.begin(), codes.end(), 2) + std::count(codes.begin(), codes.end(), 4)),
                           kNodes);
        findings_.at_least("3. two of four nodes lost, no disk: of them, those that refuse", 1,
                           static_cast<double>(std::count(codes.begin(), codes.end(), 2)), 1);
      }
    }
  }

  // 4.
  void elastic() {
    NodeRun run = make("fewer nodes", recipe(30));
    std::vector<int> nodes = all_nodes();
    int losses = 0, from_memory = 0;
    int64_t lost_steps = 0;
    for (int generation = 0; generation < 3; ++generation) {
      bool done = generation == 2;
      const int64_t at = 6 + 8 * generation;
      const std::vector<int> codes = run.run(nodes, [&](int64_t step, double) {
        if (step < at || std::exchange(done, true)) return;
        run.kill_node(1);
        ++losses;
      });
      if (generation > 0) {
        from_memory += run.restored("source") == "memory" ? 1 : 0;
        lost_steps = std::max(lost_steps, before_ - std::stol(run.restored("step")));
      }
      before_ = run.last_step();
      if (generation < 2) nodes.erase(nodes.begin() + 1);
      if (generation == 2 && !ended_well(codes)) throw Error(Error::Kind::broken_invariant, "on two nodes: " + run.log());
    }
    NodeRun whole = make("as many nodes as before", recipe(30));
    whole.run(all_nodes());
    findings_.at_least("4. four nodes, then three, then two: restored from memory", losses, from_memory, 2);
    findings_.at_most("4. four nodes, then three, then two: most steps lost", 0, static_cast<double>(lost_steps), 2);
    findings_.at_most("4. losses that differ by more than 1e-5 from those of four nodes", 0, different(whole.losses(), run.losses(), 1e-5),
                      0);
  }

  // 5. Seconds that training has waited.
  double held_up(const std::string& name, const std::vector<const char*>& more, double& step_s) {
    std::vector<std::string> sets = recipe(40);
    for (const char* one : more) sets.emplace_back(one);
    NodeRun run = make(name, sets);
    if (!ended_well(run.run(all_nodes()))) throw Error(Error::Kind::broken_invariant, run.log());
    double waited = 0;
    std::vector<double> times;
    for (const base::MetricsRow& row : base::read_metrics(run.folder() / "metrics.jsonl")) {
      if (row.has("snapshot_s")) waited += row.number("snapshot_s");
      if (row.has("step_seconds")) times.push_back(row.number("step_seconds"));
    }
    std::sort(times.begin(), times.end());
    step_s = times.empty() ? 0 : times[times.size() / 2];
    return waited / 40;
  }

  void overhead() {
    double plain_s = 0, memory_s = 0, disk_s = 0;
    held_up("no snapshots", {"snapshot.memory.every=0"}, plain_s);
    const double memory = held_up("snapshots in memory at every step", {}, memory_s);
    const double disk =
        held_up("snapshots on disk at every step", {"snapshot.memory.every=0", "snapshot.every=1", "snapshot.keep=1"}, disk_s);
    log_.info(
        "median step: {:.1f} ms without, {:.1f} ms with snapshots in memory; training waited {:.1f} ms a step for memory, {:.1f} ms for "
        "disk",
        plain_s * 1e3, memory_s * 1e3, memory * 1e3, disk * 1e3);
    findings_.at_most("5. seconds that a step waits for its snapshot in memory, of those that it waits for one on disk (not slowed down)",
                      disk, memory / disk, 1);
    findings_.skip("5. at most 5 % of step time, and at most 25 % of a disk of 100 MB/s",
                   "needs a core for the keepers beside those of the ranks, and a disk of that speed");
  }

  const ProofOptions& options_;
  Findings& findings_;
  base::Log& log_;
  std::mt19937_64 generator_{options_.seed};
  int64_t steps_ = 0, before_ = 0;
  Losses losses_;
};

}  // namespace

void prove_in_memory_ft(const ProofOptions& options, Findings& findings, base::Log& log) { InMemoryProof(options, findings, log).run(); }

}  // namespace cairn::study
