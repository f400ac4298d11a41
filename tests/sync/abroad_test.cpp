// Islands that are worlds of their own: they found a run, join it, leave it and die, and the others go on with the same bits.
#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/bridge.h"
#include "comm/local.h"
#include "toy_islands.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

const comm::Key kKey = comm::fresh_key();

SyncOptions streaming(const std::string& wire) {
  SyncOptions options{.kind = "streaming_diloco"};
  options.talk.wire = wire;
  options.talk.timeout_s = 20;
  options.outer.every = 8;
  options.outer.fragment_layers = 1;
  options.outer.delay = 3;
  return options;
}

SyncOptions plain() {
  SyncOptions options{.kind = "diloco"};
  options.talk.timeout_s = 20;
  options.outer.every = 5;
  return options;
}

// What one island does: trains up to `steps`, telling `after` after each.
struct Visitor {
  int island = 0, islands = 2, founders = 2;
  uint16_t near = 0;  // the port of an island that is there; 0: this is the first
  SyncOptions options;
  int64_t steps = 0;
  bool finish = true;
  std::function<void(comm::Bridge&)> ready = {};
  std::function<void(comm::Bridge&, Sync&, int64_t step)> after = {};
  std::function<bool()> stopping = {};
  std::optional<comm::LinkModel> links = {};
  std::shared_ptr<Visitor> again = {};  // its next life, when this one is over
};

struct VisitorEnd {
  at::Tensor agreed;
  int64_t begun = 0;
  int counted = 0;  // islands in the last round
  std::exception_ptr error;
  std::shared_ptr<VisitorEnd> again = {};
};

VisitorEnd visit(const Visitor& visitor) {
  VisitorEnd end;
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    comm::BridgeOptions options{.site = visitor.island, .sites = visitor.islands, .key = kKey};
    if (visitor.near != 0) options.places = {{"127.0.0.1", visitor.near}};
    options.links = visitor.links;
    comm::Bridge bridge(options);
    if (visitor.ready) visitor.ready(bridge);
    const Abroad abroad{.bridge = &bridge, .founders = visitor.founders, .stopping = visitor.stopping};
    ToyModel model;
    const std::unique_ptr<Sync> rule = make_sync(visitor.options, {.peers = world.alone(),
                                                                   .mates = world.alone(),
                                                                   .parameters = model.parameters,
                                                                   .gradients = {},
                                                                   .model = model.whole,
                                                                   .steps = visitor.steps,
                                                                   .seed = 3,
                                                                   .abroad = &abroad});
    end.begun = rule->begin(0);
    for (int64_t step = end.begun + 1; step <= visitor.steps; ++step) {
      model.step(visitor.island, step);
      rule->after_step({.step = step, .tokens = 10 + visitor.island, .learning_rate = 0.1}).wait();
      for (const auto& [name, value] : rule->notes())
        if (name == "islands") end.counted = static_cast<int>(value);
      if (visitor.after) visitor.after(bridge, *rule, step);
    }
    if (visitor.finish) rule->finish();
    end.agreed = flat(rule->agreed()).clone();
  });
  end.error = ended.front();
  return end;
}

// Islands as threads; the first one's port is known to those that follow.
std::vector<VisitorEnd> visit_together(std::vector<Visitor> visitors) {
  std::vector<VisitorEnd> ends(visitors.size());
  std::atomic<int> port = 0;
  const auto ready = visitors.front().ready;
  visitors.front().ready = [&, ready](comm::Bridge& bridge) {
    port = bridge.port();
    port.notify_all();
    if (ready) ready(bridge);
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < visitors.size(); ++i)
    threads.emplace_back([&, i] {
      if (i > 0) {
        port.wait(0);
        visitors[i].near = static_cast<uint16_t>(port.load());
      }
      ends[i] = visit(visitors[i]);
      if (!visitors[i].again) return;
      visitors[i].again->near = visitors[i].near;
      ends[i].again = std::make_shared<VisitorEnd>(visit(*visitors[i].again));
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

void rethrow(const VisitorEnd& end) {
  if (end.error) std::rethrow_exception(end.error);
}

// Until it is so; the bridge wakes who waits when somebody comes or goes.
template <typename So>
void until(comm::Bridge& bridge, So so) {
  while (!so()) bridge.wait(20ms);
}

TEST(Abroad, TheModelIsTheSameBitsAsWhereIslandsArePartsOfOneWorld) {
  for (const SyncOptions& options : {plain(), streaming("fp32"), streaming("e3m0")}) {
    std::vector<Visitor> visitors;
    for (int i = 0; i < 3; ++i) visitors.push_back({.island = i, .islands = 3, .founders = 3, .options = options, .steps = 43});
    const std::vector<VisitorEnd> apart = visit_together(visitors);
    const std::vector<ToyEnd> together = train_toys(3, {.options = options, .steps = 43, .finish = true});
    for (const VisitorEnd& end : apart) {
      rethrow(end);
      EXPECT_TRUE(at::equal(end.agreed, together[0].agreed)) << options.kind;
    }
  }
}

// Who founds the run tells both others, and the one that hears it at once is at work before the other has heard anything.
TEST(Abroad, WhoHearsLastOfTheFoundingTakesPartAllTheSame) {
  comm::LinkModel links;
  links.latency_matrix.assign(3, std::vector<std::chrono::nanoseconds>(3, 100us));
  links.latency_matrix[0][2] = 500ms;
  const auto begun = std::chrono::steady_clock::now();
  std::vector<Visitor> visitors;
  for (int i = 0; i < 3; ++i) {
    visitors.push_back({.island = i, .islands = 3, .founders = 3, .options = plain(), .steps = 10});
    visitors.back().links = links;
    visitors.back().stopping = [&] { return std::chrono::steady_clock::now() - begun > 60s; };  // it would wait for ever
  }
  const std::vector<VisitorEnd> ends = visit_together(visitors);
  for (const VisitorEnd& end : ends) {
    rethrow(end);
    EXPECT_EQ(end.begun, 0);
    EXPECT_EQ(end.counted, 3);
    EXPECT_TRUE(at::equal(end.agreed, ends[0].agreed));
  }
}

TEST(Abroad, ANewcomerCatchesUpAndTakesPart) {
  for (const SyncOptions& options : {plain(), streaming("e3m0")}) {
    constexpr int64_t kSteps = 1500;
    std::atomic<bool> at_work = false;
    std::vector<Visitor> visitors;
    for (int i = 0; i < 2; ++i) {
      visitors.push_back({.island = i, .islands = 3, .options = options, .steps = kSteps});
      visitors.back().after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
        if (step != 60) return;
        at_work = true;
        at_work.notify_all();
        until(bridge, [&] { return bridge.life(2) != 0; });
      };
    }
    visitors.push_back({.island = 2, .islands = 3, .options = options, .steps = kSteps});
    visitors.back().ready = [&](comm::Bridge&) { at_work.wait(false); };
    const std::vector<VisitorEnd> ends = visit_together(visitors);
    for (const VisitorEnd& end : ends) {
      rethrow(end);
      EXPECT_TRUE(at::equal(end.agreed, ends[0].agreed)) << options.kind;
      EXPECT_EQ(end.counted, 3) << options.kind;
    }
    EXPECT_GT(ends[2].begun, 0) << options.kind;
    EXPECT_LT(ends[2].begun, kSteps) << options.kind;
    EXPECT_EQ(ends[0].begun, 0);
  }
}

struct Killed : std::exception {};

TEST(Abroad, OneFailsAtAnyMomentAndComesAgain) {
  constexpr int64_t kSteps = 1500;
  for (const int64_t fails_at : {41, 45, 48}) {
    std::atomic<bool> here_again = false;
    std::vector<Visitor> visitors;
    for (int i = 0; i < 3; ++i) {
      visitors.push_back({.island = i, .islands = 3, .founders = 3, .options = streaming("e3m0"), .steps = kSteps});
      visitors.back().after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
        if (step == 100) until(bridge, [&] { return here_again && bridge.life(2) != 0; });
      };
    }
    visitors[2].again = std::make_shared<Visitor>(visitors[2]);
    visitors[2].again->after = {};
    visitors[2].again->ready = [&](comm::Bridge&) { here_again = true; };
    visitors[2].after = [fails_at](comm::Bridge&, Sync&, int64_t step) {
      if (step == fails_at) throw Killed();
    };
    const std::vector<VisitorEnd> ends = visit_together(visitors);
    rethrow(ends[0]);
    rethrow(ends[1]);
    EXPECT_TRUE(ends[2].error) << "its first life ended badly";
    ASSERT_TRUE(ends[2].again);
    rethrow(*ends[2].again);
    EXPECT_TRUE(at::equal(ends[0].agreed, ends[1].agreed)) << fails_at;
    EXPECT_TRUE(at::equal(ends[2].again->agreed, ends[0].agreed)) << fails_at;
    EXPECT_GT(ends[2].again->begun, 0);
    EXPECT_EQ(ends[0].counted, 3);
  }
}

TEST(Abroad, OneLeavesAndTheOthersGoOn) {
  std::vector<Visitor> visitors;
  for (int i = 0; i < 3; ++i) visitors.push_back({.island = i, .islands = 3, .founders = 3, .options = plain(), .steps = 60});
  visitors[0].steps = 22;  // who counts the votes
  visitors[0].finish = false;
  const std::vector<VisitorEnd> ends = visit_together(visitors);
  for (const VisitorEnd& end : ends) rethrow(end);
  EXPECT_TRUE(at::equal(ends[1].agreed, ends[2].agreed));
  EXPECT_EQ(ends[1].counted, 2);
}

TEST(Abroad, WhoDiffersInTheRuleIsNotHeard) {
  // The bridge cannot tell (its user says what must be alike); messages carry a signature of rule and model.
  std::vector<Visitor> visitors(2);
  for (int i = 0; i < 2; ++i) visitors[static_cast<size_t>(i)] = {.island = i, .options = plain(), .steps = 1500};
  visitors[1].options.outer.every = 10;
  visitors[0].founders = 1;
  std::atomic<bool> over = false;
  visitors[0].after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
    if (step == 4) until(bridge, [&] { return bridge.life(1) != 0; });
    over = step == 1500;  // long enough for one that is heard to join (ANewcomerCatchesUpAndTakesPart)
  };
  visitors[1].stopping = [&] { return over.load(); };
  const std::vector<VisitorEnd> ends = visit_together(visitors);
  rethrow(ends[0]);
  EXPECT_TRUE(ends[1].error) << "it waits until it is stopped";
  EXPECT_EQ(ends[0].counted, 1);
}

}  // namespace
}  // namespace cairn::sync
