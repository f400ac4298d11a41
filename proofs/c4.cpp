// C4 (Dong et al. 2024, arXiv:2406.04594): the faulty or slow machine is found from the collectives themselves.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/flight/recorder.h"
#include "elastic/diagnosis/view_file.h"
#include "proofs/c4_parts.h"
#include "proofs/c4_processes.h"
#include "proofs/c4_trials.h"

namespace cairn::study {
namespace {

// The outcomes of some trials, in virtual time.
struct Count {
  int trials = 0, right = 0;
  double slowest_s = 0;
  int64_t most_steps = 0;
  int right_in_30_steps = 0;
  void add(const C4Outcome& one, base::Log& log) {
    trials += 1;
    right += one.right();
    right_in_30_steps += one.right() && one.steps <= 30;
    slowest_s = std::max(slowest_s, one.seconds);
    most_steps = std::max(most_steps, one.steps);
    if (!one.right()) log.warn("{}", one.line());
  }
};

Count trials_of(const std::vector<C4Fault>& faults, int count, uint64_t seed, base::Log& log) {
  Count all;
  for (int i = 0; i < count; ++i)
    all.add(run_c4_trial({.fault = faults[static_cast<size_t>(i) % faults.size()], .seed = seed * 1000 + static_cast<uint64_t>(i)}), log);
  return all;
}

// Item 1. A guess among eight ranks is right in one of eight; who waits says nothing, because seven ranks wait.
void prove_hangs(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Count hangs = trials_of({C4Fault::stuck, C4Fault::frozen, C4Fault::late_loader, C4Fault::killed}, 20, options.seed, log);
  findings.at_least("culprit of a hang named, of 20 (8 ranks, tp=2 pp=2 dp=2, virtual time)", hangs.trials / 8.0, hangs.right, 20);
  findings.at_most("longest time from the fault to its report, s (virtual)", 60, hangs.slowest_s, 10);
}

// Item 2.
void prove_stalled_paths(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Count stalled = trials_of({C4Fault::lost_messages}, 10, options.seed + 1, log);
  findings.at_least("stalled path named with both ends, of 10", 0, stalled.right, 10);
}

// Item 3, and trials without a fault: 20 of each kind together.
void prove_slow_links(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::vector<C4Fault> kinds{C4Fault::slow_path, C4Fault::slow_sender, C4Fault::slow_receiver, C4Fault::none};
  const int count = options.full ? 80 : 40;
  const Count slow = trials_of(kinds, count, options.seed + 2, log);
  findings.at_least(fmt::format("slow path, sender, receiver or nothing: right, of {}", count), count / 4.0, slow.right,
                    std::ceil(0.95 * count));
  const int clean = options.full ? 20 : 5;
  const Count none = trials_of({C4Fault::none}, clean, options.seed + 3, log);
  findings.at_most(fmt::format("false alarms in {} runs without a fault", clean), 0, none.trials - none.right, 0);
}

// Item 4.
void prove_stragglers(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Count slow = trials_of({C4Fault::straggler}, 20, options.seed + 4, log);
  findings.at_least("rank with 10 % more computation named within 30 steps, of 20", 20 / 8.0, slow.right_in_30_steps, 19);
  const Count data = trials_of({C4Fault::slow_loader}, 4, options.seed + 5, log);
  findings.at_least("rank whose data comes late named, of 4", 0.5, data.right, 4);
  const Count all = trials_of({C4Fault::all_slower}, 4, options.seed + 6, log);
  findings.at_most("all ranks slower: false alarms, of 4", 0, all.trials - all.right, 0);
}

std::vector<std::string> real_run() {
  std::vector<std::string> arguments{"--mesh", "tp=2,pp=2,dp=2"};
  for (const char* set :
       {"model.layers=2", "model.embed=32", "model.heads=2", "model.kv_heads=2", "model.mlp=64", "data.vocab=260", "data.length=32",
        "data.stories_bytes=50000", "train.global_batch=8", "train.micro_batch=2", "train.steps=1000000", "log.samples=0",
        "log.tensorboard=false", "log.trace=false", "snapshot.every=0", "eval.every=0"})
    arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

// Nanoseconds that one collective, with two messages and its wait, spends on its records. The best of many batches.
double record_ns() {
  const auto memory = comm::make_flight_memory();
  const base::RealClock clock;
  comm::FlightRecorder recorder(memory, clock, std::chrono::nanoseconds(0), 0, 2);
  recorder.add_group(4, "dp", {0, 1});
  comm::Envelope envelope;
  envelope.group = 4;
  envelope.signature.kind = comm::OperationKind::all_reduce;
  auto best = std::chrono::nanoseconds::max();
  for (int batch = 0; batch < 200; ++batch) {
    const auto begun = clock.now();
    for (uint64_t i = 0; i < 500; ++i) {
      envelope.sequence = i;
      const uint64_t operation = recorder.begin_operation(envelope, comm::Purpose::gradient, 4096, -1, false, clock.now());
      for (const bool outgoing : {true, false}) {
        comm::Transfer transfer;
        transfer.peer = 1;
        transfer.outgoing = outgoing;
        recorder.posted(transfer, 4096, operation, clock.now());
        recorder.finished(transfer);
      }
      recorder.begin_wait(operation);
      recorder.end_operation(operation, false);
      recorder.end_wait(operation, false);
    }
    best = std::min(best, (clock.now() - begun) / 500);
  }
  return static_cast<double>(best.count());
}

// The share of a step that its records take: operations a step x their cost / length of a step, from the records of a real run.
double share_of_step(const std::string& run, double record_cost_ns) {
  double most = 0;
  for (const elastic::RankView& view : elastic::read_views(run)) {
    if (!view.log || view.log->steps.empty() || view.log->step == 0) continue;
    std::vector<double> lengths;
    for (const comm::FlightLog::Step& step : view.log->steps) lengths.push_back(static_cast<double>((step.ended - step.begun).count()));
    std::nth_element(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2), lengths.end());
    const double operations = static_cast<double>(view.log->operations_begun) / static_cast<double>(view.log->step);
    most = std::max(most, operations * record_cost_ns / lengths[lengths.size() / 2]);
  }
  return most;
}

// Items 1 and 8 on processes.
void prove_on_processes(const ProofOptions& options, Findings& findings, base::Log& log) {
  const base::Random random = base::Random(options.seed).for_purpose("c4 processes");
  const int runs = options.full ? 10 : 1;
  int right = 0, injected = 0, false_alarms = 0, impossible = 0;
  double slowest = 0, clean = 0;
  std::string last;
  for (int i = 0; i < runs; ++i) {
    const auto draw = [&](uint64_t what) { return static_cast<int>(random.below(static_cast<uint64_t>(i) * 8 + what, 8)); };
    std::vector<int> stick;  // four ranks, each once: a finding is reported once
    for (int k = 0, rank = draw(0); k < 4; ++k, rank = (rank + 1 + 2 * (draw(1) % 4)) % 8) {
      while (std::find(stick.begin(), stick.end(), rank) != stick.end()) rank = (rank + 1) % 8;
      stick.push_back(rank);
    }
    last = fmt::format("{}/run{}", options.scratch, i);
    const C4RunOutcome run = run_c4_processes(options.program, last, real_run(), stick, draw(2), options.full && i == 0 ? 1200 : 10);
    for (const C4Injection& one : run.injections) {
      impossible += one.impossible;
      if (one.impossible) continue;
      injected += 1;
      right += one.right();
      slowest = std::max(slowest, one.seconds);
      if (!one.right()) log.warn("rank {}: {}\n{}", one.rank, one.line, run.output);
    }
    false_alarms += run.false_alarms;
    clean += run.clean_seconds;
  }
  if (impossible > 0) findings.skip("alive but stuck, on processes", "this system lets nobody stop one thread of another process (ptrace)");
  if (injected == 0) return findings.skip("hangs on processes", "the run did not start");
  findings.at_least(fmt::format("culprit named on 8 processes, of {} (main thread or whole process stopped)", injected), injected / 8.0,
                    right, injected);
  findings.at_most("longest time from the fault to its report, s (processes)", 60, slowest, 10);
  findings.at_most(fmt::format("false alarms in {:.0f} s of training on 8 processes", clean), 0, false_alarms, 0);
  const double cost = record_ns();
  findings.at_most("records of one operation, microseconds", 0, cost / 1e3, 5);
  findings.at_most("share of a step that its records take", 0, share_of_step(last + "/run", cost), 0.01);
}

}  // namespace

void prove_c4_diagnosis(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_hangs(options, findings, log);
  prove_stalled_paths(options, findings, log);
  prove_slow_links(options, findings, log);
  prove_stragglers(options, findings, log);
  prove_on_processes(options, findings, log);
  findings.skip("downtime at most 25 % of a 60 s timeout and a manual restart", "the restart is proved with in-memory checkpoints");
}

void prove_c4(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_c4_diagnosis(options, findings, log);
  prove_c4_traffic(options, findings, log);
}

}  // namespace cairn::study
