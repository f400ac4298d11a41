#include "sync/co2.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/council.h"
#include "sync/flat_parameters.h"
#include "sync/island_merge.h"
#include "sync/island_post.h"
#include "sync/options.h"
#include "sync/replica_signature.h"
#include "sync/wire.h"

namespace cairn::sync {
namespace {

constexpr int64_t kTimed = 20;   // steps that are timed before the length of a round is chosen
constexpr double kMargin = 1.2;  // of it over what the traffic takes
constexpr int32_t kMeans = 0, kTimes = 1, kTrial = 2;

class Co2 final : public Sync {
 public:
  Co2(const SyncOptions& options, Replica replica)
      : options_(options.co2),
        replica_(replica),
        wire_(make_wire({wire_of(options), options.talk.keep, replica.seed})),
        exact_(make_wire({"fp32"})),
        rule_{options.talk.merge, options.talk.trim},
        post_({link_in_world(replica.peers), signature_of(options, replica), message_bytes_most(replica), is_on_gpu(replica)}),
        council_(post_, std::chrono::nanoseconds(static_cast<int64_t>(options.talk.timeout_s * 1e9))),
        parameters_(replica.parameters),
        start_(parameters_.zeros()),
        before_(parameters_.zeros()),
        momentum_(parameters_.zeros()),
        sent_(parameters_.zeros()),
        counters_(at::zeros({kCounters}, at::kDouble)) {
    counters_[kStep].fill_(-1);
    if (leaves_out(wire_of(options))) own_start_ = parameters_.zeros();
    if (replica.steps > 0 && replica.steps < options_.every)
      base::fail_input("sync.island.every = {}: the run has {} steps, so no round would take place: use less", options_.every,
                       replica.steps);
  }

  int64_t begin(int64_t steps_done) override {
    const bool restored = steps_done > 0 && number(kStep) == static_cast<double>(steps_done);
    if (!restored) {
      start_.copy_(parameters_.live());
      momentum_.zero_();
      counters_.zero_();
      set(kRoundBegun, static_cast<double>(steps_done));
      set(kEvery, static_cast<double>(options_.every));
      if (options_.every == 0) time_traffic(steps_done);
    } else if (number(kFlying) > 0) {
      fly(number(kFlightStep));
    }
    if (own_start_.defined()) own_start_.copy_(parameters_.live());
    set(kStep, static_cast<double>(steps_done));
    last_s_ = now_s();
    return steps_done;
  }

  void gradient_ready(int64_t) override {
    if (flight_) flight_->progress();
  }

  bool move(std::chrono::nanoseconds at_most) override {
    return flight_ && !post_.wait([&] { return flight_->progress(); }, post_.now() + at_most);
  }

  comm::Work after_step(const StepFacts& facts) override {
    stop_agreed_ = false;
    const auto in_round = facts.step - static_cast<int64_t>(number(kRoundBegun));
    if (in_round == 1) {
      set(kLearningRate, facts.learning_rate);
      set(kFirstMove, norm_over_island(parameters_.live().sub_(own_start_.defined() ? own_start_ : start_)));
    }
    if (number(kEvery) == 0 && in_round == kTimed) choose_every(facts.step);
    if (number(kEvery) > 0 && in_round >= static_cast<int64_t>(number(kEvery))) end_round(facts.step, in_round);
    if (flight_) flight_->progress();
    set(kStep, static_cast<double>(facts.step));
    return comm::Work::done();
  }

  void on_membership(const Membership&) override {}  // rounds find out for themselves who is there

  // The last round may be short; then both means that are still under way are taken in, so that nothing learned is lost.
  void finish() override {
    const auto step = static_cast<int64_t>(number(kStep));
    if (const int64_t in_round = step - static_cast<int64_t>(number(kRoundBegun)); in_round > 0) end_round(step, in_round);
    if (!flight_) return;
    const at::Tensor owed = own_start_.defined() ? parameters_.live().sub_(start_) : at::Tensor();
    if (const at::Tensor mean = land(); mean.defined()) take_in(mean, 1);
    if (owed.defined()) {  // all of it, this time
      last_ = true;
      sent_.copy_(owed);
      fly(static_cast<double>(step + 1));
      if (const at::Tensor mean = land(); mean.defined()) take_in(mean, 1);
    }
    parameters_.put(start_);
  }

  std::vector<at::Tensor> agreed() override { return parameters_.views(start_); }
  std::vector<ElementState> elements(int64_t) override {
    const std::vector<bool> all(replica_.model.size(), true);
    return {{"momentum", all, parameters_.views(momentum_)},
            {"before", all, parameters_.views(before_)},
            {"sent", all, parameters_.views(sent_)}};
  }
  mesh::NamedTensors state() override { return {{"outer_counters", counters_}}; }

  void ask_to_stop() override { wants_to_stop_ = true; }
  bool stop_agreed() const override { return stop_agreed_; }
  Notes notes() override { return std::exchange(notes_, {}); }

 private:
  // Small numbers that a restart needs. Moves are norms: of the first step of this round, and of the last one as the islands averaged it.
  enum Counter : int64_t {
    kStep,
    kRoundBegun,
    kRounds,
    kEvery,
    kLearningRate,
    kFirstMove,
    kFlying,
    kFlightStep,
    kFlightMove,
    kFlightSteps,
    kCounters
  };
  double number(Counter which) const { return counters_.const_data_ptr<double>()[which]; }
  void set(Counter which, double value) { counters_.mutable_data_ptr<double>()[which] = value; }
  double now_s() const { return base::seconds(replica_.peers.world().clock().now()); }

  std::optional<base::Trace::Span> span(std::string_view what) const {
    return replica_.trace ? std::optional(replica_.trace->span(what, "sync")) : std::nullopt;
  }

  // Over all shards of the island's model.
  double norm_over_island(const at::Tensor& mine) const {
    double sum = mine.to(at::kDouble).square().sum().item<double>();
    if (replica_.mates.size() > 1)
      replica_.mates.all_reduce({&sum, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "norm"}).wait_host();
    return std::sqrt(sum);
  }

  // How far this island has come in the round leaves, as a copy, with the length of its first step. The point that it started from is the
  // same on all islands, so that this says where it stands, in numbers that survive a coarse wire.
  void fly(double step) {
    const auto traced = span("send off");
    flight_ = std::make_unique<IslandMerge>(IslandMerge::Parts{.council = council_,
                                                               .wire = last_ ? *exact_ : *wire_,
                                                               .rule = rule_,
                                                               .step = static_cast<int64_t>(step),
                                                               .part = kMeans,
                                                               .note = number(kFlightMove),
                                                               .wants_to_stop = wants_to_stop_,
                                                               .in_background = sent_.is_cuda()},
                                            sent_);
    set(kFlying, 1);
    set(kFlightStep, step);
  }

  // Waits for the mean that is under way: the only place where anybody waits.
  at::Tensor land() {
    const double begun = now_s();
    at::Tensor mean;
    {
      const auto traced = flight_->progress() ? std::nullopt : span("wait for islands");
      mean = flight_->wait();
    }
    stall_s_ += now_s() - begun;
    bytes_ += flight_->bytes_sent();
    islands_ = flight_->counted();
    const double note = flight_->note();
    stop_agreed_ = stop_agreed_ || flight_->stop();
    council_.close(flight_->step());
    flight_.reset();
    set(kFlying, 0);
    if (!mean.defined()) return {};
    set(kFlightMove, note);
    return mean.to(start_.device());
  }

  // The outer step, with how far the islands came on average.
  void take_in(const at::Tensor& mean, double gap) {
    const auto traced = span("take in");
    momentum_.mul_(options_.outer_momentum).sub_(mean.mul(1 / gap));
    at::Tensor move = momentum_;
    double clipped = 0;
    if (options_.clip > 0) {
      const double most = options_.clip * number(kLearningRate) * number(kFlightSteps);
      clipped = momentum_.abs().gt(most).to(at::kDouble).mean().item<double>();
      move = momentum_.clamp(-most, most);
    }
    at::Tensor next = start_.sub(move.mul(options_.outer_lr));
    notes_ = {{"islands", islands_},
              {"sync_bytes", static_cast<double>(bytes_)},
              {"stall_s", std::exchange(stall_s_, 0) + noted(notes_, "stall_s")},
              {"gap", gap},
              {"clipped", clipped},
              {"outer_norm", mean.norm().item<double>()},
              {"every", number(kEvery)}};
    start_.copy_(next);
  }

  void end_round(int64_t step, int64_t steps) {
    const auto traced = span("end of a round");
    at::Tensor late;
    const double sent_steps = number(kFlightSteps);
    if (flight_) late = land();
    const double late_move = number(kFlightMove);
    sent_.copy_(parameters_.live().sub_(start_));
    const at::Tensor begun = start_.clone();
    set(kFlightMove, number(kFirstMove));
    fly(static_cast<double>(step));
    if (late.defined()) {
      double gap = options_.gap == "constant" ? options_.gap_value : 1;
      if (options_.gap == "ratio" && late_move > 0) gap = 1 + norm_over_island(start_ - before_) / (sent_steps * late_move);
      set(kFlightSteps, static_cast<double>(steps));
      take_in(late, gap);
    }
    set(kFlightSteps, static_cast<double>(steps));
    before_.copy_(begun);
    if (own_start_.defined()) {
      // What the wire leaves out the island keeps, so that it is part of what it sends next.
      own_start_.copy_(start_ + (sent_ - flight_->as_sent().to(sent_.device())));
      if (!std::isfinite(own_start_.norm().item<double>())) own_start_.copy_(start_);
    }
    parameters_.put(own_start_.defined() ? own_start_ : start_);
    set(kRoundBegun, static_cast<double>(step));
    set(kRounds, number(kRounds) + 1);
  }

  // With every = 0: how long a whole exchange takes, and how long a step; all islands must choose alike.
  void time_traffic(int64_t step) {
    const double begun = now_s();
    IslandMerge trial({.council = council_, .wire = *wire_, .rule = rule_, .step = step, .part = kTrial, .in_background = sent_.is_cuda()},
                      parameters_.live());
    trial.wait();
    traffic_s_ = now_s() - begun;
  }
  void choose_every(int64_t step) {
    const double step_s = (now_s() - last_s_) / kTimed;
    at::Tensor times = at::empty({2}, at::kFloat);
    times[0].fill_(traffic_s_);
    times[1].fill_(step_s);
    const MergeRule mean{};
    IslandMerge merge({.council = council_, .wire = *exact_, .rule = mean, .step = step, .part = kTimes}, times);
    times = merge.wait();
    int64_t every = options_.min_every;
    if (times.defined() && times[1].item<double>() > 0)
      every = std::max<int64_t>(every, static_cast<int64_t>(std::ceil(kMargin * times[0].item<double>() / times[1].item<double>())));
    set(kEvery, static_cast<double>(every));
    replica_.peers.world().log().info("co2: the means of islands travel for {:.3g} s, a step takes {:.3g} s: rounds of {} steps",
                                      times.defined() ? times[0].item<double>() : 0, times.defined() ? times[1].item<double>() : 0, every);
  }

  const Co2Options options_;
  Replica replica_;
  std::unique_ptr<const Wire> wire_, exact_;
  const MergeRule rule_;
  IslandPost post_;
  Council council_;
  FlatParameters parameters_;
  at::Tensor start_, before_, momentum_;  // of this round, of the one before; outer momentum
  at::Tensor sent_;                       // what is under way, for snapshots
  at::Tensor own_start_;                  // where this island began the round, with a wire that leaves numbers out; else undefined
  at::Tensor counters_;
  std::unique_ptr<IslandMerge> flight_;
  bool wants_to_stop_ = false, stop_agreed_ = false;
  bool last_ = false;  // the exchange that ends the run
  int islands_ = 0;
  int64_t bytes_ = 0;
  double stall_s_ = 0, traffic_s_ = 0, last_s_ = 0;
  Notes notes_;
};

}  // namespace

std::unique_ptr<Sync> make_co2(const SyncOptions& options, Replica replica) { return std::make_unique<Co2>(options, replica); }

}  // namespace cairn::sync
