// OneFlow's runtime: actors with registers. Costs are real waits on real threads; the honest baseline is the same work in one loop.
#include "proofs/oneflow_runtime.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

#include "base/actors/runtime.h"
#include "base/actors/simulation.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "parallel/pipeline/actors.h"
#include "proofs/timed_model.h"

namespace cairn::study {
namespace {

using Nothing = std::optional<base::PendingTurn>;

// Takes time as a device would: this thread has nothing to do until then.
void take(double seconds) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  never.wait_until(lock, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(until), [] { return false; });
}

// Actors one after the other, each on its own thread but the last; every turn takes its time. Seconds from the 5th turn of the last to its
// end, per turn.
double period_of(const std::vector<double>& seconds, int registers, int64_t turns) {
  base::ActorGraph graph;
  std::vector<base::ActorBody> bodies;
  const base::RealClock clock;
  double from = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const int queue = graph.add_queue({.name = fmt::format("queue {}", i)});
    const int actor = graph.add_actor({.name = fmt::format("actor {}", i), .queue = queue, .turns = i == 0 ? turns : -1});
    if (i > 0) graph.add_register({.name = fmt::format("register {}", i), .writer = actor - 1, .readers = {actor}, .count = registers});
    const bool last = i + 1 == seconds.size();
    bodies.push_back([&, last, cost = seconds[i]](base::TurnBuffers& turn) -> Nothing {
      if (last && turn.tag() == 5) from = base::seconds(clock.now());
      take(cost);
      return {};
    });
  }
  const int last = static_cast<int>(seconds.size()) - 1;
  base::ActorRuntime runtime(graph, bodies, {last});
  runtime.run_here(std::span(&last, 1));
  return (base::seconds(clock.now()) - from) / static_cast<double>(turns - 5);
}

void chains(Findings& findings, base::Log& log) {
  const std::vector<double> load_copy_compute{0.010, 0.010, 0.012};
  constexpr int64_t kTurns = 45;
  const base::RealClock clock;
  const double begun = base::seconds(clock.now());
  for (int64_t i = 0; i < kTurns; ++i)
    for (const double cost : load_copy_compute) take(cost);
  const double serial = (base::seconds(clock.now()) - begun) / kTurns;
  log.info("load, copy, compute in one loop: {:.1f} ms", serial * 1e3);
  const double one = period_of(load_copy_compute, 1, kTurns), two = period_of(load_copy_compute, 2, kTurns);
  findings.at_least("4. load 10, copy 10, compute 12 ms, one register each: ms per step", serial * 1e3, one * 1e3, 20);
  findings.at_most("4. the same: ms per step", serial * 1e3, one * 1e3, 24);
  findings.at_most("4. two registers each: ms per step", serial * 1e3, two * 1e3, 13.5);
}

// Memory that counts itself.
struct Counted {
  explicit Counted(std::pair<int64_t, int64_t>& of) : bytes(int64_t{10} << 20), live(of) {
    live.first += bytes.size();
    live.second = std::max(live.second, live.first);
  }
  std::vector<char> bytes;
  std::pair<int64_t, int64_t>& live;
};

void back_pressure(Findings& findings) {
  base::ActorGraph graph;
  graph.add_queue({.name = "producer"});
  graph.add_queue({.name = "consumer"});
  graph.add_actor({.name = "producer", .queue = 0, .turns = 60});
  graph.add_actor({.name = "consumer", .queue = 1});
  graph.add_register({.name = "made", .writer = 0, .readers = {1}, .count = 3});
  std::pair<int64_t, int64_t> live;  // now, most
  const int consumer = 1;
  base::ActorRuntime runtime(graph,
                             {[&](base::TurnBuffers& turn) -> Nothing {
                                take(0.001);
                                if (!turn.output(0).has_value()) turn.output(0) = std::make_shared<Counted>(live);
                                return {};
                              },
                              [](base::TurnBuffers&) -> Nothing {
                                take(0.005);
                                return {};
                              }},
                             {consumer});
  runtime.run_here(std::span(&consumer, 1));
  findings.at_most("4. a producer 5 times as fast, 3 registers of 10 MiB: most MiB at once", 60 * 10,
                   static_cast<double>(live.second >> 20), 30);
  findings.at_least("4. of its 3 registers in use at once", 1, runtime.peak_held()[0], 3);
}

// Stages that know no schedule, on threads of their own: a backward before a forward, as many activations as registers.
void pipeline(Findings& findings, base::Log& log) {
  constexpr int kStages = 4;
  constexpr int64_t kMicroBatches = 8;
  constexpr double kForward = 0.020, kBackward = 0.040;
  base::ActorGraph graph;
  std::vector<base::ActorBody> bodies;
  const auto work = [](double seconds) {
    return [seconds](base::TurnBuffers&) -> Nothing {
      take(seconds);
      return {};
    };
  };
  std::vector<int> forward, backward, kept;
  for (int s = 0; s < kStages; ++s) {
    const int queue = graph.add_queue({.name = fmt::format("stage {}", s)});
    backward.push_back(graph.add_actor({.name = fmt::format("B{}", s), .queue = queue}));
    bodies.push_back(work(kBackward));
    forward.push_back(graph.add_actor({.name = fmt::format("F{}", s), .queue = queue, .turns = s == 0 ? kMicroBatches : -1}));
    bodies.push_back(work(kForward));
    kept.push_back(graph.add_register(
        {.name = fmt::format("activations {}", s), .writer = forward.back(), .readers = {backward.back()}, .count = kStages - s}));
  }
  const auto link = [&](int from, int to) {
    const int mover = graph.add_actor({.name = "move", .queue = graph.add_queue({.name = "link"})});
    bodies.push_back(work(0));
    graph.add_register({.name = "leaving", .writer = from, .readers = {mover}, .count = 1});
    graph.add_register({.name = "arriving", .writer = mover, .readers = {to}, .count = 1});
  };
  for (size_t s = 0; s + 1 < kStages; ++s) {
    link(forward[s], forward[s + 1]);
    link(backward[s + 1], backward[s]);
  }
  const int here = 0;
  const base::RealClock clock;
  base::ActorRuntime runtime(graph, bodies, {here});
  runtime.run_here(std::span(&here, 1));
  const double ideal = static_cast<double>(kMicroBatches) * (kForward + kBackward);
  const double step = base::seconds(clock.now()) / ideal;
  log.info("4 stages from registers alone: {:.3f} of the ideal step", step);
  findings.at_most("5. four stages, 8 micro-batches, registers and no schedule: step / ideal", 1.375, step, 1.375 * 1.08);
  findings.at_least("5. the same: step / ideal", 1.375, step, 1.375 * 0.92);
  const std::vector<int> held = runtime.peak_held();
  int beyond = 0;
  for (int s = 0; s < kStages; ++s) beyond += std::max(0, held[static_cast<size_t>(kept[static_cast<size_t>(s)])] - (kStages - s));
  findings.at_most("5. activations beyond 4, 3, 2, 1 of the stages", 0, beyond, 0);

  // And the product's own pipeline: the list that registers make, over the trainer's runtime in virtual time.
  PipelineRun run;
  run.schedule = "flow";
  run.blocks = {.blocks = kStages, .forward_s = kForward, .input_s = kBackward / 2, .weight_s = kBackward / 2};
  const PipelineTimes times = time_pipeline(run);
  findings.at_most("5. the trainer's pipeline with schedule flow: step / ideal", 1.375, times.step_s / ideal, 1.375 * 1.08);
  int64_t too_many = 0;
  for (int s = 0; s < kStages; ++s) too_many += std::max<int64_t>(0, times.peak_in_flight[static_cast<size_t>(s)] - (kStages - s));
  findings.at_most("5. its micro-batches alive beyond 4, 3, 2, 1", 0, static_cast<double>(too_many), 0);
}

// The fewest registers with which a plan runs; one less on any edge is refused before start, and the edge is named.
void deadlock(Findings& findings) {
  // The second rank takes micro-batches in pairs, the second of each first.
  parallel::Schedule schedule{.name = "pairs", .micro_batches = 4, .rank_of_stage = {0, 1}, .actions = {}};
  schedule.actions.resize(2);
  for (int m = 0; m < 4; ++m) schedule.actions[0].push_back({parallel::ActionKind::forward, 0, m});
  for (const int m : {1, 0, 3, 2}) {
    schedule.actions[1].push_back({parallel::ActionKind::forward, 1, m});
    schedule.actions[1].push_back({parallel::ActionKind::backward, 1, m});
    schedule.actions[0].push_back({parallel::ActionKind::backward, 0, m});
  }
  const std::vector<parallel::StageEdge> edges{{"stream", 0, 1}};
  const auto refusal = [&](int registers) -> std::string {
    try {
      base::check_no_deadlock(parallel::all_actors(schedule, edges, parallel::edge_registers(schedule, edges, registers)).graph);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  findings.at_most("6. a plan with enough registers: refused", 0, refusal(2).empty() ? 0 : 1, 0);
  const std::string said = refusal(1);
  findings.at_least("6. one register less: refused before start, the edge named", 0,
                    said.find("stream from stage 0 to stage 1, where it arrives needs 2 registers and has 1") != std::string::npos ? 1 : 0,
                    1);
}

}  // namespace

void prove_oneflow_runtime(const ProofOptions&, Findings& findings, base::Log& log) {
  chains(findings, log);
  back_pressure(findings);
  pipeline(findings, log);
  deadlock(findings);
}

}  // namespace cairn::study
