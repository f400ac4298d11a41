// Ranks of a run with lazy snapshots, killed at random moments: what a restart finds is a whole snapshot, and the losses that follow are
// those of a run that nobody killed.
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "proofs/datastates_parts.h"
#include "snapshot/snapshot.h"
#include "snapshot/staging.h"
#include "study/claims.h"
#include "study/process.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLazySteps = 60;

std::vector<std::string> command(const ProofOptions& options, const fs::path& out, int ranks) {
  std::vector<std::string> argv{options.program, "train", "--out", out.string(), "--nproc", std::to_string(ranks), "--resume", "auto"};
  for (const std::string& set :
       {std::string("model.layers=2"), std::string("model.embed=64"), std::string("model.heads=4"), std::string("model.mlp=128"),
        std::string("data.vocab=300"), std::string("data.length=32"), std::string("data.stories_bytes=200000"),
        std::string("train.global_batch=8"), std::string("eval.every=0"), std::string("log.tensorboard=false"),
        std::string("log.samples=0"), std::string("log.trace=false"), std::string("snapshot.mode=lazy"), std::string("snapshot.every=1"),
        std::string("snapshot.host_bytes=400KiB"), std::string("snapshot.write_bytes_per_s=40000000"),
        fmt::format("train.steps={}", kLazySteps), fmt::format("train.seed={}", options.seed)}) {
    argv.emplace_back("--set");
    argv.push_back(set);
  }
  return argv;
}

// The ranks that this agent has started.
std::vector<int> children_of(int process) {
  std::ifstream list(fmt::format("/proc/{0}/task/{0}/children", process));
  std::vector<int> found;
  for (int child = 0; list >> child;) found.push_back(child);
  return found;
}

// Lets the run train for a while and kills one of its ranks, or all. Returns whether the run ended by itself before.
bool killed_after(const ProofOptions& options, const fs::path& out, int ranks, std::chrono::duration<double> after, uint64_t which) {
  bool killed = false;
  std::thread killer;
  run_program(command(options, out, ranks), (fs::path(options.scratch) / "killed.txt").string(), [&](int process) {
    killer = std::thread([&, process] {
      wait_for_time(after);
      const std::vector<int> all = children_of(process);
      if (all.empty()) return;
      killed = true;
      kill(all[which % all.size()], SIGKILL);
    });
  });
  killer.join();
  return !killed;
}

// Snapshots with a manifest that names a file of another length, and whether the newest can be opened.
struct Found {
  int64_t short_files = 0;
  bool opens = true;
};
Found look_at(const fs::path& out, base::Log& log) {
  Found found;
  if (!fs::exists(out / "snapshots")) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(out / "snapshots"))
    if (entry.path().filename().string().starts_with("step-")) found.short_files += !snapshot::looks_whole(entry.path());
  const bool any = !snapshot::list(out.string()).empty();
  try {
    found.opens = !any || snapshot::open_latest(out.string(), log).has_value();
  } catch (const Error& error) {
    log.warn("{}", error.what());
    found.opens = false;
  }
  return found;
}

double losses_differ(const fs::path& a, const fs::path& b) {
  std::vector<double> one, other;
  for (const base::MetricsRow& row : base::read_metrics(a / "metrics.jsonl")) one.push_back(row.number("loss"));
  for (const base::MetricsRow& row : base::read_metrics(b / "metrics.jsonl")) other.push_back(row.number("loss"));
  if (one.size() != static_cast<size_t>(kLazySteps) || one.size() != other.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < one.size(); ++i) most = std::max(most, std::abs(one[i] - other[i]));
  return most;
}

}  // namespace

void wait_for_time(std::chrono::duration<double> time) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, time, [] { return false; });
}

void prove_lazy_saves_survive_kills(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr const char* kClaim = "ranks killed at random moments while they save";
  if (options.program.empty()) {
    findings.skip(kClaim, "no program to start");
    return;
  }
  const fs::path scratch = options.scratch;
  const base::Random random = base::Random(options.seed).for_purpose("kills");
  const int kills = options.full ? 50 : 6;
  int64_t short_files = 0, unopened = 0, done = 0, runs = 0;
  double differ = 0;
  for (const int ranks : options.full ? std::vector<int>{2, 3, 4} : std::vector<int>{2}) {
    const fs::path straight = scratch / fmt::format("straight-{}", ranks);
    const ProcessResult whole = run_program(command(options, straight, ranks), (scratch / "straight.txt").string());
    if (whole.exit_code != 0) log.warn("the run that nobody kills: exit code {}: {}", whole.exit_code, whole.output);
    const int64_t until = (done + (kills - done + (options.full ? 4 - ranks : 0)) / (options.full ? 5 - ranks : 1));
    while (done < until) {
      const fs::path out = scratch / fmt::format("killed-{}-{}", ranks, runs++);
      for (bool ended = false; !ended && done < until;) {
        const auto draw = static_cast<uint64_t>(done);
        const std::chrono::duration<double> after((0.2 + 1.3 * random.uniform(2 * draw)) * whole.seconds);
        ended = killed_after(options, out, ranks, after, random.below(2 * draw + 1, 1'000'000));
        if (ended) break;
        ++done;
        const Found found = look_at(out, log);
        short_files += found.short_files;
        unopened += !found.opens;
        log.info("kill {} of {}: rank of {} after {:.2f} s; snapshots {}", done, kills, ranks, after.count(),
                 snapshot::list(out.string()).size());
      }
      run_program(command(options, out, ranks), (scratch / "last.txt").string());
      differ = std::max(differ, losses_differ(straight, out));
      fs::remove_all(out);
    }
  }
  findings.at_least(fmt::format("{}: kills", kClaim), 0, static_cast<double>(done), kills);
  findings.at_most("after kills: manifests that name a short file", 0, static_cast<double>(short_files), 0);
  findings.at_most("after kills: runs without a snapshot that opens, though they had one", 0, static_cast<double>(unopened), 0);
  findings.at_most("runs continued after kills: largest loss difference to one that nobody killed", 0, differ, 1e-6);
}

}  // namespace cairn::study
