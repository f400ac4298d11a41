// DiLoCo and streaming DiLoCo against their recurrences, written down once more.
#include <limits>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"
#include "sync/islands/fragments.h"
#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

SyncOptions plain(int64_t every, double lr, double momentum) {
  SyncOptions options{.kind = "diloco"};
  options.outer.outer_warmup = 0;
  options.outer.every = every;
  options.outer.outer_lr = lr;
  options.outer.outer_momentum = momentum;
  return options;
}

SyncOptions streaming(int64_t every, double lr, double momentum, int64_t delay, double blend) {
  SyncOptions options = plain(every, lr, momentum);
  options.kind = "streaming_diloco";
  options.exchange.wire = "fp32";
  options.outer.fragment_layers = 1;
  options.outer.delay = delay;
  options.outer.blend = blend;
  return options;
}

// The recurrences of DiLoCo on one process.
std::vector<ToyEnd> by_hand(int islands, int64_t steps, int64_t every, double lr, double momentum,
                            const std::vector<double>& weights = {}) {
  std::vector<ToyModel> models(static_cast<size_t>(islands));
  at::Tensor anchor = models[0].flat().clone(), velocity = at::zeros_like(anchor);
  for (int64_t step = 1; step <= steps; ++step) {
    for (int k = 0; k < islands; ++k) models[static_cast<size_t>(k)].step(k, step);
    if (step % every != 0) continue;
    at::Tensor mean = at::zeros_like(anchor).to(at::kDouble);
    double total = 0;
    for (int k = 0; k < islands; ++k) {
      const double weight = weights.empty() ? 1 : weights[static_cast<size_t>(k)];
      mean += (anchor - models[static_cast<size_t>(k)].flat()).to(at::kDouble) * weight;
      total += weight;
    }
    mean /= total;
    velocity = momentum * velocity + mean;
    anchor = (anchor - lr * (mean + momentum * velocity)).to(at::kFloat);
    for (ToyModel& model : models) {
      int64_t at = 0;
      for (const mesh::NamedTensor& one : model.parameters) {
        one.tensor.copy_(anchor.narrow(0, at, one.tensor.numel()));
        at += one.tensor.numel();
      }
    }
  }
  std::vector<ToyEnd> ends;
  for (const ToyModel& model : models) ends.push_back({model.flat(), anchor});
  return ends;
}

TEST(Diloco, FollowsItsRecurrencesOnAnyNumberOfIslands) {
  for (const int islands : {2, 3, 5, 11}) {
    const auto expected = by_hand(islands, 20, 4, 0.7, 0.9);
    const auto found = train_toys(islands, {.options = plain(4, 0.7, 0.9), .steps = 20});
    for (int k = 0; k < islands; ++k) {
      EXPECT_LT(furthest(found[k].own, expected[k].own), 1e-5) << islands;
      EXPECT_TRUE(at::equal(found[k].global_model, found[0].global_model));
      EXPECT_TRUE(at::equal(found[k].own, found[k].global_model));
    }
  }
}

TEST(Diloco, WithoutMomentumAndWithRateOneIsAnAverage) {
  const auto found = train_toys(3, {.options = plain(5, 1, 0), .steps = 10});
  const auto expected = by_hand(3, 10, 5, 1, 0);
  EXPECT_LT(furthest(found[1].own, expected[1].own), 1e-6);
}

TEST(Diloco, CountsIslandsByTheirTokens) {
  SyncOptions options = plain(4, 0.7, 0.9);
  options.outer.weights = IslandWeights::tokens;
  const auto found = train_toys(3, {.options = options, .steps = 12});
  EXPECT_LT(furthest(found[2].global_model, by_hand(3, 12, 4, 0.7, 0.9, {10, 11, 12})[2].global_model), 1e-5);
  EXPECT_GT(furthest(found[2].global_model, by_hand(3, 12, 4, 0.7, 0.9)[2].global_model), 1e-4);
}

TEST(StreamingDiloco, InOneFragmentWithoutDelayIsDiloco) {
  SyncOptions options = streaming(4, 0.7, 0.9, 0, 0);
  options.outer.fragment_layers = 3;
  options.outer.extras = ExtraParameters::smallest;
  const auto expected = train_toys(3, {.options = plain(4, 0.7, 0.9), .steps = 20});
  const auto found = train_toys(3, {.options = options, .steps = 20});
  for (int k = 0; k < 3; ++k) EXPECT_TRUE(at::equal(found[k].global_model, expected[k].global_model));
}

TEST(StreamingDiloco, OfOneIslandIsNesterovLookAhead) {
  const auto found = train_toys(1, {.options = streaming(8, 0.4, 0.9, 0, 0), .steps = 24});
  // Fragment p is looked ahead at steps 2(p+1), 2(p+1)+8, ...
  ToyModel model;
  const std::vector<int> fragment_of{3, 0, 1, 2, 3};
  std::vector<at::Tensor> anchor, velocity;
  for (const mesh::NamedTensor& one : model.parameters) {
    anchor.push_back(one.tensor.clone());
    velocity.push_back(at::zeros_like(one.tensor));
  }
  for (int64_t step = 1; step <= 24; ++step) {
    model.step(0, step);
    for (size_t p = 0; p < anchor.size(); ++p) {
      if (step % 8 != 2 * (fragment_of[p] + 1) % 8) continue;
      const at::Tensor gradient = anchor[p] - model.parameters[p].tensor;
      velocity[p] = 0.9 * velocity[p] + gradient;
      anchor[p] = anchor[p] - 0.4 * (gradient + 0.9 * velocity[p]);
      model.parameters[p].tensor.copy_(anchor[p]);
    }
  }
  EXPECT_LT(furthest(found[0].own, model.flat()), 1e-6);
}

TEST(StreamingDiloco, BlendsWhatArrivesLate) {
  // One fragment in flight for 2 steps: by hand for the first round, in which the anchor is the start.
  SyncOptions options = streaming(8, 0.4, 0.9, 2, 0.25);
  ToyModel models[2];
  const at::Tensor start = models[0].parameters[1].tensor.clone();
  at::Tensor sum = at::zeros_like(start);
  for (int64_t step = 1; step <= 4; ++step)
    for (int k = 0; k < 2; ++k) {
      models[k].step(k, step);
      if (step == 2) sum += start - models[k].parameters[1].tensor;
    }
  const at::Tensor gradient = sum / 2, anchor = start - 0.4 * (gradient + 0.9 * gradient);
  ToyEnd found[2];
  ToyRun run{.options = options, .steps = 8};
  run.after = [&](comm::World& world, Sync& rule, ToyModel& model, int64_t step) {
    if (step == 4) found[world.rank()] = {model.flat().clone(), flat(rule.global_parameters()).clone()};
  };
  train_toys(2, run);
  for (int k = 0; k < 2; ++k) {
    EXPECT_LT(furthest(found[k].global_model.narrow(0, 4, 5), anchor), 1e-6);
    EXPECT_LT(furthest(found[k].own.narrow(0, 4, 5), 0.25 * models[k].parameters[1].tensor + 0.75 * anchor), 1e-6);
  }
}

TEST(StreamingDiloco, HasOneModelOnAllIslandsWithFourBitMessages) {
  SyncOptions options = streaming(8, 0.4, 0.9, 1, 0.5);
  options.exchange.wire = "e3m0";
  for (const int islands : {2, 5, 9}) {
    const auto found = train_toys(islands, {.options = options, .steps = 200, .finish = true});
    for (const ToyEnd& end : found) {
      EXPECT_TRUE(at::equal(end.global_model, found[0].global_model));
      EXPECT_TRUE(at::equal(end.own, end.global_model));  // finish ends with the model
    }
  }
}

TEST(StreamingDiloco, FinishTakesInWhatWasTrainedLast) {
  const auto cut_short = train_toys(2, {.options = plain(8, 1, 0), .steps = 12});
  const auto finished = train_toys(2, {.options = plain(8, 1, 0), .steps = 12, .finish = true});
  const at::Tensor mean = (cut_short[0].own + cut_short[1].own) / 2;
  EXPECT_LT(furthest(finished[0].global_model, mean), 1e-6);
  EXPECT_GT(furthest(cut_short[0].global_model, mean), 1e-2);
  // A run that ends with a round has nothing left to take in: momentum alone moves nothing.
  EXPECT_TRUE(at::equal(train_toys(2, {.options = plain(4, 0.7, 0.9), .steps = 12, .finish = true})[0].global_model,
                        train_toys(2, {.options = plain(4, 0.7, 0.9), .steps = 12})[0].global_model));
}

// Updates that are not finite are dropped; if none is left, the anchor stays and one rank warns, once.
TEST(Diloco, AFailedRoundIsReported) {
  ToyRun run{.options = plain(4, 1, 0), .steps = 8};
  run.after = [](comm::World&, Sync&, ToyModel& model, int64_t step) {
    if (step == 3) model.parameters[0].tensor.fill_(std::numeric_limits<float>::quiet_NaN());
    if (step == 4) model.parameters[0].tensor.fill_(1);
  };
  std::vector<ToyEnd> ends(2);
  const harness::Run told =
      harness::on_ranks(2, [&](comm::World& world) { ends[static_cast<size_t>(world.rank())] = train_toy(world, run); });
  EXPECT_EQ(furthest(ends[0].global_model, ends[1].global_model), 0);
  EXPECT_TRUE(ends[0].global_model.isfinite().all().item<bool>());
  std::string lines;
  for (const auto& [rank, said] : told.log)
    for (const std::string& line : said) lines += line + "\n";
  EXPECT_NE(lines.find("step 4: the round failed"), std::string::npos) << lines;
  EXPECT_EQ(lines.find("round failed"), lines.rfind("round failed")) << lines;
}

TEST(Diloco, SlowLinksChangeNoBit) {
  ToyRun run{.options = streaming(8, 0.4, 0.9, 1, 0.5), .steps = 40, .finish = true};
  run.options.exchange.timeout_s = 3600;  // no island is left out
  const auto fast = train_toys(3, run);
  std::vector<ToyEnd> slow(3);
  comm::LocalNetwork network(3, {.seed = 5, .link = {.latency = std::chrono::milliseconds(300), .latency_sigma = 1.5}});
  for (const std::exception_ptr& end :
       network.run([&](comm::World& world) { slow[static_cast<size_t>(world.rank())] = train_toy(world, run); }))
    EXPECT_EQ(end, nullptr);
  for (int k = 0; k < 3; ++k) EXPECT_TRUE(at::equal(slow[k].own, fast[k].own));
}

TEST(Diloco, GoesOnWithoutAnIslandThatDies) {
  for (const int victim : {0, 2}) {
    ToyRun run{.options = streaming(8, 0.4, 0.9, 1, 0.5), .steps = 40, .finish = true};
    run.after = [&](comm::World& world, Sync&, ToyModel&, int64_t step) {
      if (world.rank() == victim && step == 14) throw comm::Killed();  // a fragment is in flight
    };
    std::vector<ToyEnd> ends(4);
    comm::LocalNetwork network(4, {.seed = 9, .link = {.latency = std::chrono::milliseconds(2)}});
    const auto errors = network.run([&](comm::World& world) { ends[static_cast<size_t>(world.rank())] = train_toy(world, run); });
    for (int k = 0; k < 4; ++k) EXPECT_EQ(errors[static_cast<size_t>(k)] == nullptr, k != victim) << k;
    const int first = victim == 0 ? 1 : 0;
    for (int k = 0; k < 4; ++k)
      EXPECT_TRUE(k == victim || at::equal(ends[static_cast<size_t>(k)].global_model, ends[static_cast<size_t>(first)].global_model)) << k;
  }
}

void expect_to_resume(const SyncOptions& options) {
  for (const int64_t at : {3, 10, 13}) {
    const auto straight = train_toys(2, {.options = options, .steps = 30, .finish = true});
    std::vector<ToyEnd> ends(2);
    struct Saved {
      std::vector<at::Tensor> own, global_model, elements, state;
    };
    std::vector<Saved> saved(2);
    const auto copied = [](const std::vector<at::Tensor>& from) {
      std::vector<at::Tensor> all;
      for (const at::Tensor& one : from) all.push_back(one.defined() ? one.clone() : at::Tensor());
      return all;
    };
    ToyRun first{.options = options, .steps = at};
    first.after = [&](comm::World& world, Sync& rule, ToyModel& model, int64_t step) {
      if (step != at) return;
      Saved& now = saved[static_cast<size_t>(world.rank())];
      now.global_model = copied(rule.global_parameters());
      for (const mesh::NamedTensor& one : model.parameters) now.own.push_back(one.tensor.clone());
      for (const ElementState& state : rule.elements(step))
        for (const at::Tensor& one : copied(state.mine)) now.elements.push_back(one);
      for (const mesh::NamedTensor& one : rule.state()) now.state.push_back(one.tensor.clone());
    };
    first.options.outer.every = 8;
    harness::on_ranks(2, [&](comm::World& world) {
      ToyRun part = first;
      part.steps = 30;  // the same run, left after `at`
      part.after = [&](comm::World& w, Sync& rule, ToyModel& model, int64_t step) { first.after(w, rule, model, step); };
      train_toy(world, part);
    });
    harness::on_ranks(2, [&](comm::World& world) {
      const Saved& from = saved[static_cast<size_t>(world.rank())];
      ToyModel model;
      const std::unique_ptr<Sync> rule = make_sync(options, {.replica_group = world.everyone(),
                                                             .model_group = world.alone(),
                                                             .parameters = model.parameters,
                                                             .gradients = {},
                                                             .model = model.whole,
                                                             .steps = 30,
                                                             .seed = 3});
      for (size_t i = 0; i < from.own.size(); ++i) {
        model.parameters[i].tensor.copy_(from.own[i]);
        rule->global_parameters()[i].copy_(from.global_model[i]);
      }
      size_t next = 0;
      for (const ElementState& state : rule->elements(at))
        for (const at::Tensor& one : state.mine) {
          const at::Tensor& value = from.elements[next++];
          ASSERT_EQ(one.defined(), value.defined());
          if (one.defined()) one.copy_(value);
        }
      const mesh::NamedTensors small = rule->state();
      for (size_t i = 0; i < small.size(); ++i) small[i].tensor.copy_(from.state[i]);
      rule->begin(at);
      for (int64_t step = at + 1; step <= 30; ++step) {
        model.step(world.rank(), step);
        rule->after_step({.step = step, .tokens = 10, .learning_rate = 0.1}).wait();
      }
      rule->finish();
      EXPECT_TRUE(at::equal(flat(rule->global_parameters()), straight[static_cast<size_t>(world.rank())].global_model)) << at;
    });
  }
}

TEST(Diloco, ResumesWithAFragmentUnderWay) { expect_to_resume(streaming(8, 0.4, 0.9, 2, 0.5)); }

TEST(Diloco, ResumesWithItsResidual) {
  for (const char* wire : {"e3m0", "topk", "randk"}) {
    SyncOptions options = streaming(8, 0.2, 0.5, 2, 0.5);
    options.exchange.wire = wire;
    options.exchange.keep = 0.25;
    options.outer.error_feedback = true;
    expect_to_resume(options);
  }
}

TEST(Diloco, RefusesWhatCannotWork) {
  const auto refusal = [](const SyncOptions& options, int64_t steps) {
    std::string told;
    harness::on_ranks(1, [&](comm::World& world) {
      try {
        train_toy(world, {.options = options, .steps = steps});
      } catch (const Error& error) {
        told = error.what();
      }
    });
    return told;
  };
  EXPECT_EQ(refusal(streaming(10, 0.4, 0.9, 1, 0.5), 100), "sync.island.every = 10 is not a multiple of 4 fragments: use 8 or 12");
  EXPECT_EQ(refusal(streaming(8, 0.4, 0.9, 8, 0.5), 100),
            "sync.island.delay = 8: a fragment must arrive before it is sent again, 8 steps later: use less");
  EXPECT_EQ(refusal(plain(30, 0.7, 0.9), 20), "sync.island.every = 30: the run has 20 steps, so no round would take place: use less");
}

TEST(Fragments, AreStridedOrNeighbours) {
  std::vector<FullParameter> model{{"embed", 10}};
  for (int layer = 0; layer < 7; ++layer) model.push_back({"model.layers." + std::to_string(layer) + ".w", layer + 1});
  model.push_back({"norm", 1});
  const Fragments strided = split_into_fragments(model, 3, true, true), neighbours = split_into_fragments(model, 3, false, true),
                  smallest = split_into_fragments(model, 3, true, false);
  EXPECT_EQ(strided.count, 4);
  EXPECT_EQ(strided.of, (std::vector<int>{3, 0, 1, 2, 0, 1, 2, 0, 3}));
  EXPECT_EQ(neighbours.of, (std::vector<int>{3, 0, 0, 0, 1, 1, 1, 2, 3}));
  // Fragments have 1+4+7, 2+5 and 3+6 elements: embed goes to the second, then norm to the third.
  EXPECT_EQ(smallest.count, 3);
  EXPECT_EQ(smallest.of, (std::vector<int>{1, 0, 1, 2, 0, 1, 2, 0, 2}));
  EXPECT_EQ(layer_of("transformer.h.12.attn.c_attn.weight"), 12);
  EXPECT_EQ(layer_of("lm_head.weight"), -1);
}

TEST(Diloco, ASlowerIslandLeavesStepsOutSoThatNobodyWaits) {
  constexpr int64_t kSteps = 240;
  for (const Pace pace : {Pace::equal, Pace::own}) {
    SyncOptions options{.kind = "diloco"};
    options.outer.outer_warmup = 0;
    options.outer.every = 12;
    options.outer.weights = IslandWeights::tokens;
    options.outer.pace = pace;
    std::vector<int64_t> taken(3), after_half(3);
    std::vector<double> seconds(3);
    std::vector<at::Tensor> global_model(3);
    harness::on_ranks(3, [&](comm::World& world) {
      const auto me = static_cast<size_t>(world.rank());
      const std::chrono::milliseconds step_takes = std::vector{10ms, 30ms, 20ms}[me];
      ToyModel model;
      const std::unique_ptr<Sync> rule = make_sync(options, {.replica_group = world.everyone(),
                                                             .model_group = world.alone(),
                                                             .parameters = model.parameters,
                                                             .gradients = {},
                                                             .model = model.whole,
                                                             .steps = kSteps,
                                                             .seed = 3});
      rule->begin(0);
      for (int64_t step = 1; step <= kSteps; ++step) {
        const bool takes = rule->should_step(step);
        if (takes) {
          model.step(world.rank(), step);
          world.timer(world.clock().now() + step_takes).wait();
          ++taken[me];
          if (step > kSteps / 2) ++after_half[me];
        }
        rule->after_step({.step = step, .tokens = takes ? 10 : 0, .learning_rate = 0.1, .skipped = !takes}).wait();
      }
      seconds[me] = base::seconds(world.clock().now());
      global_model[me] = flat(rule->global_parameters()).clone();
    });
    const bool own = pace == Pace::own;
    EXPECT_EQ(taken[0], kSteps);
    EXPECT_EQ(after_half[1], own ? kSteps / 6 : kSteps / 2) << "a third of the speed, a third of the steps";
    EXPECT_EQ(after_half[2], own ? kSteps / 4 : kSteps / 2);
    // In the first round nobody knows yet who is slow.
    EXPECT_NEAR(seconds[0], own ? 0.01 * (kSteps - 12) + 0.03 * 12 : 0.03 * kSteps, 0.1);
    EXPECT_TRUE(at::equal(global_model[0], global_model[1]) && at::equal(global_model[0], global_model[2]));
  }
}

// Up to step `start` by the mean after every step, then DiLoCo in rounds that end at multiples of `every`.
at::Tensor start_by_hand(int islands, int64_t start, int64_t steps, int64_t every, double lr, double momentum) {
  std::vector<ToyModel> models(static_cast<size_t>(islands));
  at::Tensor anchor = models[0].flat(), velocity = at::zeros_like(anchor);
  for (int64_t step = 1; step <= steps; ++step) {
    at::Tensor mean = at::zeros_like(anchor);
    for (int island = 0; island < islands; ++island) {
      models[static_cast<size_t>(island)].step(island, step);
      mean += (anchor - models[static_cast<size_t>(island)].flat()) / islands;
    }
    if (step > start && step % every != 0) continue;
    if (step <= start) {
      anchor = anchor - mean;
    } else {
      velocity = velocity * momentum + mean;
      anchor = anchor - lr * (mean + momentum * velocity);
    }
    for (ToyModel& model : models) {
      int64_t at = 0;
      for (const mesh::NamedTensor& one : model.parameters) {
        one.tensor.copy_(anchor.narrow(0, at, one.tensor.numel()));
        at += one.tensor.numel();
      }
    }
  }
  return anchor;
}

TEST(Diloco, AveragesEveryStepUntilItStarts) {
  for (const int islands : {2, 3}) {
    SyncOptions options = plain(4, 0.7, 0.9);
    options.outer.start_after = 6;
    const std::vector<ToyEnd> ends = train_toys(islands, {.options = options, .steps = 16});
    EXPECT_LT(furthest(ends[0].global_model, start_by_hand(islands, 6, 16, 4, 0.7, 0.9)), 1e-6);
    EXPECT_TRUE(at::equal(ends[0].global_model, ends[1].global_model));
    EXPECT_GT(furthest(ends[0].global_model, start_by_hand(islands, 0, 16, 4, 0.7, 0.9)), 1e-4);
  }
}

TEST(StreamingDiloco, AveragesEveryStepUntilItStarts) {
  // Averaging by hand ends at the same model only if no fragment was late or blended while it started.
  SyncOptions options = streaming(8, 1, 0, 2, 0.5);
  options.outer.start_after = 7;
  const std::vector<ToyEnd> start = train_toys(3, {.options = options, .steps = 8, .finish = true});
  EXPECT_LT(furthest(start[0].global_model, start_by_hand(3, 8, 8, 8, 1, 0)), 1e-5);
  const std::vector<ToyEnd> ends = train_toys(3, {.options = options, .steps = 20});
  EXPECT_TRUE(at::equal(ends[0].global_model, ends[1].global_model) && at::equal(ends[0].global_model, ends[2].global_model));
}

TEST(Diloco, TheMomentumGrowsOverTheRunIfItIsShort) {
  SyncOptions options = plain(2, 0.7, 0.9), asked = options;
  options.outer.outer_warmup = -1;
  asked.outer.outer_warmup = 6;
  EXPECT_TRUE(at::equal(train_toys(2, {.options = options, .steps = 12})[0].global_model,
                        train_toys(2, {.options = asked, .steps = 12})[0].global_model));
  asked.outer.outer_warmup = 20;
  EXPECT_TRUE(at::equal(train_toys(2, {.options = options, .steps = 100})[0].global_model,
                        train_toys(2, {.options = asked, .steps = 100})[0].global_model));
}

TEST(Diloco, MomentumGrowsOverTheFirstRoundsWhereAskedTo) {
  SyncOptions options{.kind = "diloco"};
  options.outer.outer_warmup = 0;
  options.outer.every = 2;
  options.outer.outer_warmup = 4;
  const std::vector<ToyEnd> ends = train_toys(2, {.options = options, .steps = 12});
  // By hand: the rounds keep 0, 1/4, 2/4, 3/4 and then all of the momentum.
  std::vector<ToyModel> models(2);
  at::Tensor anchor = models[0].flat(), momentum = at::zeros_like(anchor);
  for (int64_t round = 0; round < 6; ++round) {
    at::Tensor mean = at::zeros_like(anchor);
    for (int island = 0; island < 2; ++island) {
      ToyModel& model = models[static_cast<size_t>(island)];
      for (int64_t step = 2 * round + 1; step <= 2 * round + 2; ++step) model.step(island, step);
      mean += (anchor - model.flat()) / 2;
    }
    const double keep = 0.9 * std::min(1.0, static_cast<double>(round) / 4);
    momentum = momentum * keep + mean;
    anchor = anchor - 0.7 * (mean + keep * momentum);
    for (ToyModel& model : models) {
      int64_t at = 0;
      for (const mesh::NamedTensor& one : model.parameters) {
        one.tensor.copy_(anchor.narrow(0, at, one.tensor.numel()));
        at += one.tensor.numel();
      }
    }
  }
  EXPECT_LT(furthest(ends[0].global_model, anchor), 1e-6);
}

}  // namespace
}  // namespace cairn::sync
