// The live master and workers over a mailbox, in virtual time: exact gradients whoever is late, tasks that stop, lost workers.
#include "federate/coded_master.h"

#include <cmath>
#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "federate/coded_worker.h"
#include "harness/ranks.h"
#include "sync/coding/straggler_chain.h"

namespace cairn::federate {
namespace {

using sync::CodeKind;

constexpr int64_t kSamples = 120, kElements = 3;

// The gradient of a sample is a small integer that depends on stream, step, sample and the weights.
float sample_gradient(int64_t stream, int64_t step, int64_t sample, int64_t element, float weight) {
  return static_cast<float>((stream * 31 + step * 17 + sample * 7 + element * 3) % 19 - 9) + weight;
}

class IntegerStreams final : public Streams {
 public:
  explicit IntegerStreams(int64_t streams) : weights_(static_cast<size_t>(streams), std::vector<float>(kElements, 1.0F)) {}
  int64_t streams() const override { return static_cast<int64_t>(weights_.size()); }
  int64_t samples(int64_t, int64_t) const override { return kSamples; }
  std::vector<float> weights(int64_t stream) const override { return weights_[static_cast<size_t>(stream)]; }
  void apply(int64_t stream, int64_t step, std::span<const float> gradient, double loss_sum) override {
    std::vector<float>& own = weights_[static_cast<size_t>(stream)];
    for (int64_t e = 0; e < kElements; ++e) {
      double wanted = 0;
      for (int64_t i = 0; i < kSamples; ++i)
        wanted += static_cast<double>(sample_gradient(stream, step, i, e, own[static_cast<size_t>(e)]));
      const double found = static_cast<double>(gradient[static_cast<size_t>(e)]);
      error = std::max(error, std::abs(found - wanted) / (10 * kSamples));
    }
    for (int64_t e = 0; e < kElements; ++e)
      own[static_cast<size_t>(e)] = static_cast<float>((step * 5 + e) % 7);  // so that old weights show
    loss_error = std::max(loss_error, std::abs(loss_sum - kSamples * (kSamples - 1) / 2.0));
    ++applied;
  }
  double error = 0, loss_error = 0;
  int64_t applied = 0;

 private:
  std::vector<std::vector<float>> weights_;
};

class IntegerGradients final : public GradientSource {
 public:
  void take_weights(int64_t stream, std::span<const float> weights) override { weights_[stream] = {weights.begin(), weights.end()}; }
  std::optional<Gradient> compute(int64_t stream, int64_t step, std::span<const SampleRange> ranges,
                                  const std::function<bool()>& given_up) override {
    Gradient found{.sum = std::vector<float>(kElements), .losses = {}};
    for (const SampleRange& range : ranges) {
      if (given_up()) return std::nullopt;
      double loss = 0;
      for (int64_t i = range.first; i < range.first + range.count; ++i) {
        loss += static_cast<double>(i);
        for (int64_t e = 0; e < kElements; ++e)
          found.sum[static_cast<size_t>(e)] +=
              static_cast<float>(range.weight) * sample_gradient(stream, step, i, e, weights_.at(stream)[static_cast<size_t>(e)]);
      }
      found.losses.push_back(loss);
    }
    return found;
  }

 private:
  std::map<int64_t, std::vector<float>> weights_;
};

struct LiveRun {
  MasterResult master;
  double error = 0, loss_error = 0;
  int64_t applied = 0;
};

LiveRun run_live(const MasterOptions& options, int64_t streams, const std::function<double(int worker, int64_t round, double load)>& delay,
                 const harness::Faults& faults = {}) {
  LiveRun found;
  const auto body = [&](comm::World& world) {
    const base::Stop never;
    if (world.rank() == 0) {
      IntegerStreams held(streams);
      found.master = run_coded_master(world, options, held, never);
      found.error = held.error;
      found.loss_error = held.loss_error;
      found.applied = held.applied;
      return;
    }
    const int worker = world.rank() - 1;
    IntegerGradients gradients;
    run_coded_worker(world, {.worker = worker, .delay = [&](int64_t round, double load) { return delay(worker, round, load); }}, gradients);
  };
  harness::on_ranks(options.workers + 1, {.expect_errors = !faults.empty()}, faults, body);
  return found;
}

// The sheet's pilot: 1 s, 4 s times the load, 4 s for a slow worker.
std::function<double(int, int64_t, double)> bursts(int workers, double enter, double leave) {
  auto slow = std::make_shared<std::vector<std::vector<char>>>(static_cast<size_t>(workers));
  for (int i = 0; i < workers; ++i) {
    sync::StragglerChain chain({enter, leave, 4}, 1, i);
    for (int r = 0; r < 400; ++r) (*slow)[static_cast<size_t>(i)].push_back(chain.next());
  }
  return [slow](int worker, int64_t round, double load) {
    return 1 + 4 * load + ((*slow)[static_cast<size_t>(worker)][static_cast<size_t>(round)] ? 4 : 0);
  };
}

TEST(CodedMaster, GradientsAreExactWhoeverIsLate) {
  for (const SchemeSpec& spec : {SchemeSpec{}, SchemeSpec{.kind = SchemeKind::gc, .s = 1}, SchemeSpec{.kind = SchemeKind::gc, .s = 2},
                                 SchemeSpec{.kind = SchemeKind::srsgc, .b = 2, .w = 3, .lambda = 3},
                                 SchemeSpec{.kind = SchemeKind::msgc, .b = 1, .w = 3, .lambda = 3},
                                 SchemeSpec{.kind = SchemeKind::msgc, .b = 2, .w = 3, .lambda = 4},
                                 SchemeSpec{.kind = SchemeKind::msgc, .b = 1, .w = 2, .lambda = 6}}) {
    const LiveRun found = run_live({.workers = 6, .jobs = 24, .spec = spec, .mu = 0.6}, spec.delay() + 1, bursts(6, 0.15, 0.7));
    EXPECT_EQ(found.applied, 24) << spec.text();
    EXPECT_LT(found.error, 1e-5) << spec.text();
    EXPECT_EQ(found.loss_error, 0) << spec.text();
    int64_t late = 0;
    for (const RoundRecord& round : found.master.rounds) late += static_cast<int64_t>(round.late.size());
    EXPECT_TRUE(late > 0 || spec.kind == SchemeKind::none) << spec.text();  // or the test shows nothing
  }
}

TEST(CodedMaster, TakesAsLongAsTheReplaySays) {
  const auto delay = bursts(8, 0.05, 0.9);
  for (const SchemeSpec& spec :
       {SchemeSpec{.kind = SchemeKind::gc, .s = 1}, SchemeSpec{.kind = SchemeKind::msgc, .b = 1, .w = 3, .lambda = 4}}) {
    const LiveRun live = run_live({.workers = 8, .jobs = 40, .spec = spec, .mu = 0.6}, spec.delay() + 1, delay);
    const Replayed replayed =
        replay(make_scheme(spec, 8, 40, CodeKind::automatic, 1), 0.6, [&](int64_t r, int i, double load) { return delay(i, r, load); });
    EXPECT_NEAR(live.master.seconds / replayed.seconds, 1, 0.01) << spec.text();
  }
}

TEST(CodedMaster, WaitsWhereThePatternDoesNotConform) {
  const LiveRun found = run_live({.workers = 4, .jobs = 6, .spec = {.kind = SchemeKind::gc, .s = 1}, .mu = 0.5}, 1,
                                 [](int worker, int64_t round, double) { return round == 2 && worker < 2 ? 10.0 + worker : 1.0; });
  EXPECT_LT(found.error, 1e-6);
  for (const RoundRecord& round : found.master.rounds) {
    EXPECT_EQ(round.waited, round.round == 2);
    EXPECT_NEAR(round.seconds, round.round == 2 ? 10 : 1, 0.05);  // for the first of the two, and not for the second
  }
}

TEST(CodedMaster, ACancelledTaskEndsAtOnce) {
  // A worker that is late in round 0 by far is on time in round 1.
  const LiveRun found = run_live({.workers = 3, .jobs = 4, .spec = {.kind = SchemeKind::gc, .s = 1}, .mu = 0.5}, 1,
                                 [](int worker, int64_t round, double) { return round == 0 && worker == 2 ? 1000.0 : 1.0; });
  EXPECT_EQ(found.master.rounds[0].late, (std::vector<int>{2}));
  EXPECT_TRUE(found.master.rounds[1].late.empty());
  EXPECT_LT(found.master.seconds, 6);
}

TEST(CodedMaster, CountsTheSamplesOfEveryWorker) {
  const SchemeSpec spec{.kind = SchemeKind::msgc, .b = 1, .w = 3, .lambda = 1};  // 4 workers, 5 units each: 20 units
  const LiveRun found = run_live({.workers = 4, .jobs = 9, .spec = spec}, 3, [](int, int64_t, double) { return 1.0; });
  for (const RoundRecord& round : found.master.rounds) {
    if (round.round < 2 || round.round >= 9) continue;  // some slots are empty
    for (const int64_t samples : round.samples) EXPECT_NEAR(static_cast<double>(samples), round.load * kSamples, 1);
  }
}

TEST(CodedMaster, RemovesAWorkerThatDies) {
  const LiveRun found = run_live(
      {.workers = 4, .jobs = 30, .spec = {.kind = SchemeKind::msgc, .b = 1, .w = 2, .lambda = 1}, .mu = 0.5}, 2,
      [](int, int64_t, double) { return 1.0; }, harness::Faults().lose({.rank = 3, .at = std::chrono::seconds(8)}));
  EXPECT_EQ(found.applied, 30);
  EXPECT_LT(found.error, 1e-5);
  EXPECT_EQ(found.loss_error, 0);
  EXPECT_EQ(found.master.lost, (std::vector<int>{2}));
}

TEST(CodedMaster, RemovesAWorkerThatHoldsUpARoundBeyondAllMeasure) {
  const LiveRun found = run_live({.workers = 4, .jobs = 12, .spec = {}, .mu = 0.5, .dead_after = 20}, 1,
                                 [](int worker, int64_t round, double) { return worker == 1 && round >= 4 ? 100000.0 : 1.0; });
  EXPECT_EQ(found.applied, 12);
  EXPECT_EQ(found.master.lost, (std::vector<int>{1}));
  EXPECT_LT(found.master.seconds, 60);
}

TEST(CodedMaster, ChoosesParametersNearTheBest) {
  const auto delay = bursts(8, 0.05, 0.9);
  MasterOptions options{
      .workers = 8, .jobs = 160, .spec = {.kind = SchemeKind::msgc}, .choose = true, .delay_max = 3, .probe_rounds = 60, .mu = 0.6};
  const LiveRun found = run_live(options, 4, delay);
  EXPECT_EQ(found.applied, 160);
  EXPECT_LT(found.error, 1e-5);
  ASSERT_FALSE(found.master.choices.empty());
  EXPECT_NEAR(found.master.profile.per_load, 4, 0.2);
  const int64_t left = 160 - found.master.probe_jobs,
                first = static_cast<int64_t>(found.master.rounds.size()) - left - found.master.spec.delay();
  const auto later = [&](int64_t r, int i, double load) { return delay(i, r + first, load); };
  double best = 1e9, own = 0;
  for (const Choice& one : rank_parameters({.kinds = {SchemeKind::msgc}, .workers = 8, .jobs = left, .delay_max = 3, .mu = 0.6}, later)) {
    best = std::min(best, one.seconds);
    if (one.spec == found.master.spec) own = one.seconds;
  }
  EXPECT_LT(own, 1.05 * best);
}

}  // namespace
}  // namespace cairn::federate
