#include "proofs/c4_trials.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "comm/flight/log.h"
#include "comm/flight/recorder.h"
#include "comm/local/local.h"
#include "comm/transport.h"
#include "elastic/diagnosis/monitor.h"

namespace cairn::study {
namespace {

using elastic::Cause;
using elastic::Liveness;
using Nanoseconds = std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr int kRanks = 8, kAgent = 8;
constexpr int64_t kTensor = 16 << 10, kGradients = 64 << 10;  // f32 elements
constexpr int kMicroBatches = 2;

// What the ranks and the agent of one trial share.
struct Stage {
  explicit Stage(const C4Trial& t) : trial(t), random(base::Random(t.seed).for_purpose("c4 trial")) {
    outcome.fault = t.fault;
    const auto draw = [&](uint64_t what, uint64_t below) { return static_cast<int>(random.below(what, below)); };
    outcome.rank = draw(1, kRanks);
    outcome.peer = outcome.rank ^ (1 << draw(2, 3));  // along tp, dp or pp
    fault_step = 22 + draw(3, 12);
    fault_part = draw(4, 2 * kMicroBatches);
  }
  C4Trial trial;
  base::Random random;
  C4Outcome outcome;
  int64_t fault_step;
  int fault_part;
  std::mutex lock;
  std::array<std::shared_ptr<comm::FlightMemory>, kRanks> memories = {};
  std::array<std::atomic<int>, kRanks> liveness = {};
  std::atomic<int> running = kRanks;
  std::atomic<bool> over = false;
  std::atomic<int64_t> struck_at = -1, step = 0;
};

void pass_time(comm::World& world, Nanoseconds length) {
  const Nanoseconds until = world.clock().now() + length;
  const comm::Completion tick = world.transport().timer(until);
  world.transport().drive([&] { return tick.done(); }, until + 1s, "a computation");
}

class TrialRank {
 public:
  TrialRank(comm::World& world, Stage& stage)
      : world_(world),
        stage_(stage),
        flight_(*world.transport().recorder()),
        rank_(world.rank()),
        random_(stage.random.for_purpose("jitter").for_index(static_cast<uint64_t>(rank_))),
        tp_(world.group(sorted(rank_, rank_ ^ 1), "tp")),
        dp_(world.group(sorted(rank_, rank_ ^ 2), "dp")),
        pp_(world.group(sorted(rank_, rank_ ^ 4), "pp")),
        all_(world.group({0, 1, 2, 3, 4, 5, 6, 7}, "all")),
        x_(kTensor),
        gradients_(kGradients) {
    flight_.set_host(rank_ < 4 ? "node0" : "node1");
    flight_.set_role(static_cast<uint64_t>(rank_ / 4));
  }

  void run() {
    for (int64_t step = 1; step <= stage_.trial.steps; ++step) {
      step_ = step;
      if (rank_ == 0) stage_.step = step;
      flight_.begin_step(step);
      load();
      flight_.set_activity(comm::Activity::computing);
      for (int i = 0; i < kMicroBatches; ++i) forward(i);
      for (int i = 0; i < kMicroBatches; ++i) backward(i);
      flight_.set_activity(comm::Activity::updating);
      dp_.all_reduce({gradients_.data(), kGradients}, comm::Reduce::sum, {comm::Purpose::gradient, "gradients"}).wait();
      all_.all_reduce({x_.data(), 2}, comm::Reduce::sum, {comm::Purpose::loss, "norm and loss"}).wait();
      flight_.end_step();
    }
    flight_.set_activity(comm::Activity::ended);
  }

 private:
  static std::vector<int> sorted(int a, int b) { return {std::min(a, b), std::max(a, b)}; }
  bool here(C4Fault fault) const { return stage_.trial.fault == fault && stage_.outcome.rank == rank_ && step_ >= stage_.fault_step; }
  void strike() {
    int64_t unset = -1;
    if (stage_.struck_at.compare_exchange_strong(unset, world_.clock().now().count())) stage_.outcome.steps = step_;
  }

  void load() {
    flight_.set_activity(comm::Activity::loading);
    if (here(C4Fault::late_loader)) stand_still();
    const bool slow = here(C4Fault::slow_loader);
    if (slow) strike();
    pass_time(world_, slow ? 12ms : 1ms);
  }

  void stand_still() {
    strike();
    while (!stage_.over) pass_time(world_, 100ms);
    throw comm::Killed();
  }

  // 20 ms, and up to 2 % more. A hang begins at one of several places in the step.
  void compute(int part) {
    if (step_ == stage_.fault_step && part == stage_.fault_part && stage_.outcome.rank == rank_) {
      if (here(C4Fault::stuck) || here(C4Fault::frozen)) stand_still();
      if (here(C4Fault::killed)) {
        strike();
        throw comm::Killed();
      }
    }
    double ms = 20 * (1 + 0.02 * random_.uniform(static_cast<uint64_t>(step_ * 16 + part)));
    if (here(C4Fault::straggler)) ms *= 1.1, strike();
    if (stage_.trial.fault == C4Fault::all_slower && step_ >= stage_.fault_step) ms *= 1.5;
    pass_time(world_, Nanoseconds(static_cast<int64_t>(ms * 1e6)));
  }

  void over_tp() { tp_.all_reduce({x_.data(), kTensor}, comm::Reduce::sum, {comm::Purpose::activation, "mlp.down_proj"}).wait(); }
  int other_stage() const { return rank_ < 4 ? 1 : 0; }
  void receive(const char* what) { pp_.recv({x_.data(), kTensor}, other_stage(), {comm::Purpose::activation, what}).wait(); }
  void send(const char* what) { pp_.send({x_.data(), kTensor}, other_stage(), {comm::Purpose::activation, what}).wait(); }

  void forward(int i) {
    if (rank_ >= 4) receive("hidden");
    compute(i);
    over_tp();
    if (rank_ < 4) send("hidden");
  }
  void backward(int i) {
    if (rank_ < 4) receive("gradient of hidden");
    compute(kMicroBatches + i);
    over_tp();
    if (rank_ >= 4) send("gradient of hidden");
  }

  comm::World& world_;
  Stage& stage_;
  comm::FlightRecorder& flight_;
  int rank_;
  base::Random random_;
  comm::Group &tp_, &dp_, &pp_, &all_;
  std::vector<float> x_, gradients_;
  int64_t step_ = 0;
};

void run_rank(comm::World& world, Stage& stage) {
  const auto rank = static_cast<size_t>(world.rank());
  {
    const std::lock_guard guard(stage.lock);
    stage.memories[rank] = world.transport().recorder()->memory();
  }
  try {
    TrialRank(world, stage).run();
    stage.liveness[rank] = static_cast<int>(Liveness::ended);
  } catch (const comm::Killed&) {
    if (!stage.over) stage.liveness[rank] = static_cast<int>(Liveness::dead);
  } catch (const Error&) {
    stage.liveness[rank] = static_cast<int>(Liveness::ended);
  }
  --stage.running;
}

// The agent: looks once a second. It knows of a process whether it has ended, as an agent does, and that it stands still.
void look_on(comm::World& world, Stage& stage) {
  elastic::Monitor monitor({});
  while (stage.running > 0 && !stage.over) {
    pass_time(world, 1s);
    std::vector<elastic::RankView> views;
    {
      const std::lock_guard guard(stage.lock);
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto i = static_cast<size_t>(rank);
        elastic::RankView view{.rank = rank, .host = rank < 4 ? "node0" : "node1", .now = world.clock().now()};
        view.liveness = static_cast<Liveness>(stage.liveness[i].load());
        if (view.liveness == Liveness::dead) view.how = "was killed by signal 9 (SIGKILL)";
        const bool still = stage.trial.fault == C4Fault::frozen && rank == stage.outcome.rank && stage.struck_at >= 0;
        if (still && world.clock().now() - Nanoseconds(stage.struck_at) > 2s) {
          view.liveness = Liveness::frozen;
          view.how = "its process stands still";
        }
        if (stage.memories[i]) view.log = comm::read_flight_log(*stage.memories[i]);
        views.push_back(std::move(view));
      }
    }
    const auto found = monitor.look(views);
    if (found.empty()) continue;
    stage.outcome.found = found.front();
    if (stage.struck_at >= 0) {
      stage.outcome.seconds = static_cast<double>((world.clock().now() - Nanoseconds(stage.struck_at)).count()) / 1e9;
      stage.outcome.steps = stage.step - stage.outcome.steps;
    } else {
      stage.outcome.steps = stage.step;
    }
    stage.over = true;
  }
  stage.over = true;
}

comm::LinkModel links_of(const Stage& stage) {
  comm::LinkModel links;
  links.bytes_per_s = 100e6;
  const int rank = stage.outcome.rank, peer = stage.outcome.peer;
  links.bytes_per_s_matrix.assign(kRanks + 1, std::vector<double>(kRanks + 1, links.bytes_per_s));
  for (int other = 0; other <= kRanks; ++other) {
    if (stage.trial.fault == C4Fault::slow_sender) links.bytes_per_s_matrix[rank][other] *= 0.2;
    if (stage.trial.fault == C4Fault::slow_receiver) links.bytes_per_s_matrix[other][rank] *= 0.2;
  }
  if (stage.trial.fault == C4Fault::slow_path) links.bytes_per_s_matrix[rank][peer] *= 0.2;
  return links;
}

}  // namespace

bool C4Outcome::right() const {
  const bool nothing = fault == C4Fault::none || fault == C4Fault::all_slower;
  if (nothing || !found) return nothing && !found;
  if (fault == C4Fault::lost_messages) return found->cause == Cause::stalled_path && found->rank == rank && found->peer == peer;
  if (fault == C4Fault::slow_path) return found->cause == Cause::slow_path && found->rank == rank && found->peer == peer;
  if (found->rank != rank) return false;
  switch (fault) {
    case C4Fault::stuck:
      return found->cause == Cause::stuck;
    case C4Fault::frozen:
      return found->cause == Cause::frozen;
    case C4Fault::killed:
      return found->cause == Cause::dead;
    case C4Fault::slow_sender:
      return found->cause == Cause::slow_sender;
    case C4Fault::slow_receiver:
      return found->cause == Cause::slow_receiver;
    case C4Fault::straggler:
      return found->cause == Cause::straggler;
    default:
      return found->cause == Cause::late_data;
  }
}

std::string C4Outcome::line() const {
  return fmt::format("fault {} at rank {} (peer {}): {} after {:.1f} s", static_cast<int>(fault), rank, peer,
                     found ? elastic::to_line(*found) : "nothing found", seconds);
}

C4Outcome run_c4_trial(const C4Trial& trial) {
  Stage stage(trial);
  comm::LocalOptions options;
  options.seed = trial.seed;
  options.link = links_of(stage);
  options.lost_after = Nanoseconds(0);
  if (trial.fault == C4Fault::lost_messages) {
    const Nanoseconds at = 3s + stage.fault_step * 7ms;
    stage.struck_at = at.count();
    options.faults.push_back({.kind = comm::Fault::Kind::drop, .at = at, .from = stage.outcome.rank, .to = stage.outcome.peer});
  }
  comm::LocalNetwork network(kRanks + 1, std::move(options));
  network.run([&](comm::World& world) { world.rank() == kAgent ? look_on(world, stage) : run_rank(world, stage); });
  return stage.outcome;
}

}  // namespace cairn::study
