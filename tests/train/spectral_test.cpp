// Sparse spectral training: the same on every layout and after a resume, invariants between steps, what is drawn, what is refused.
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/disk.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/decoder/spectral_weight.h"
#include "refusal.h"
#include "save_now.h"
#include "small_decoder.h"
#include "snapshot/pretrained.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/spectral/draw_pairs.h"
#include "train/state/full_state.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

base::Recipe spectral_recipe(std::vector<std::string> more = {}) {
  std::vector<std::string> sets{"train.global_batch=8",          "train.steps=20",
                                "optim.warmup_steps=2",          "optim.learning_rate=0.003",
                                "model.spectral.rank=5",         "model.spectral.iteration_steps=2",
                                "model.spectral.warmup_steps=1", "model.spectral.round_iterations=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

struct SpectralTrace {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
  std::vector<double> coverage;
};

SpectralTrace spectral_steps(int ranks, const base::Recipe& recipe, int64_t steps) {
  SpectralTrace trace;
  std::mutex mutex;
  harness::on_ranks(ranks, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, recipe, {}, {});
    SpectralTrace mine;
    while (job->progress.steps_done < steps) {
      const TakenStep taken = take_step(*job);
      ++job->progress.steps_done;
      const at::Tensor loss = taken.output.loss_sum.to(at::kDouble).clone();
      job->engine.step_group->all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
      mine.losses.push_back(loss.item<double>() / static_cast<double>(taken.loss_denominator));
      mine.coverage.push_back(sync::metric(job->between_steps.back()->metrics(), "spectral_coverage"));
    }
    for (const mesh::NamedTensor& one : gather_whole(*job, parameter_state(*job))) mine.parameters[one.name] = one.tensor.clone();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) trace = std::move(mine);
  });
  return trace;
}

class SpectralLayouts : public testing::TestWithParam<std::pair<int, std::vector<std::string>>> {};

// Two rounds of two iterations: three draws and two decompositions.
TEST_P(SpectralLayouts, GiveTheLossesOfOneRank) {
  static const SpectralTrace alone = spectral_steps(1, spectral_recipe(), 10);
  const auto& [ranks, sets] = GetParam();
  const SpectralTrace many = spectral_steps(ranks, spectral_recipe(sets), 10);
  for (size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(many.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Every, SpectralLayouts,
                         testing::Values(std::pair<int, std::vector<std::string>>{2, {"mesh.dp=2"}},
                                         std::pair<int, std::vector<std::string>>{4, {"mesh.dp=4"}},
                                         std::pair<int, std::vector<std::string>>{2, {"memory.zero=1"}},
                                         std::pair<int, std::vector<std::string>>{3, {"memory.zero=2"}},
                                         std::pair<int, std::vector<std::string>>{4, {"memory.zero=3"}},
                                         std::pair<int, std::vector<std::string>>{2, {"mesh.tp=2"}},
                                         std::pair<int, std::vector<std::string>>{4, {"mesh.tp=2", "memory.zero=2"}},
                                         std::pair<int, std::vector<std::string>>{2, {"mesh.pp=2"}},
                                         std::pair<int, std::vector<std::string>>{1, {"recompute.mode=full"}},
                                         std::pair<int, std::vector<std::string>>{1, {"model.spectral.path=dense"}}));

TEST(Spectral, KeepsUnitVectorsAndValuesAboveZero) {
  for (const std::vector<std::string>& sets : {std::vector<std::string>{"optim.learning_rate=0.05"},
                                               std::vector<std::string>{"optim.learning_rate=0.05", "memory.zero=2", "mesh.tp=2"}}) {
    const SpectralTrace trace = spectral_steps(sets.size() > 1 ? 4 : 1, spectral_recipe(sets), 7);
    int found = 0;
    for (const auto& [name, tensor] : trace.parameters) {
      if (name.find(".spectral_") == std::string::npos) continue;
      ++found;
      if (name.ends_with("spectral_s"))
        EXPECT_GE(tensor.min().item<double>(), 0) << name;
      else
        EXPECT_LT((tensor.to(at::kDouble).square().sum(1).sqrt() - 1).abs().max().item<double>(), 1e-6) << name;
    }
    EXPECT_EQ(found, 3 * 7 * 5);
  }
}

// The function that a decomposition leaves is the one that it found: only which vectors train changes the losses.
TEST(Spectral, DecompositionsChangeNoLoss) {
  std::map<std::string, at::Tensor> before;
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, spectral_recipe(), {}, {});
    const auto dense = [&] {
      std::map<std::string, at::Tensor> all;
      std::map<int32_t, at::Tensor> values;
      for (const StateTensor& one : parameter_state(*job)) values[static_cast<int32_t>(one.parameter)] = one.mine;
      for (const model::SpectralLayer& one : model::spectral_layers(*job->engine.model))
        all[one.name] = at::mm((values[one.u] * values[one.s].narrow(0, 0, one.rank).unsqueeze(1)).t(), values[one.v]) +
                        at::mm((values[one.u_frozen] * values[one.s].narrow(0, one.rank, one.values - one.rank).unsqueeze(1)).t(),
                               values[one.v_frozen]);
      return all;
    };
    while (job->progress.steps_done < 4) take_step(*job), ++job->progress.steps_done;
    const auto was = dense();
    job->between_steps.back()->before_step(5);  // ends the round
    EXPECT_GT(sync::metric(job->between_steps.back()->metrics(), "spectral_orthogonality_error"), 0);
    for (const auto& [name, after] : dense()) EXPECT_LT((after - was.at(name)).abs().max().item<double>(), 2e-6) << name;
  });
}

TEST(Spectral, OptimizerStateIsThatOfTheActivePairs) {
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, spectral_recipe(), {}, {});
    for (const model::SpectralLayer& layer : model::spectral_layers(*job->engine.model)) {
      const std::string base = layer.name.substr(0, layer.name.rfind('.') + 1);
      int64_t bytes = 0;
      for (const mesh::NamedTensor& one : job->engine.optimizer->state())
        if (one.name.find("." + base) != std::string::npos) bytes += static_cast<int64_t>(one.tensor.nbytes());
      EXPECT_EQ(bytes, 8 * (layer.values + layer.rank * (layer.in + layer.out))) << layer.name;
    }
  });
}

TEST(Spectral, ResumesInsideAnIterationBitwise) {
  const harness::ScratchFolder scratch;
  const auto run = [&](bool resume) {
    SpectralTrace trace;
    harness::on_ranks(1, [&](comm::World& world) {
      Start start;
      start.out = scratch.path();
      start.resume = resume;
      const std::unique_ptr<Job> job = build(world, spectral_recipe({"model.spectral.iteration_steps=3"}), start, {});
      EXPECT_EQ(job->progress.steps_done, resume ? 5 : 0);
      while (job->progress.steps_done < 14) {
        trace.losses.push_back(take_step(*job).output.loss_sum.item<double>());
        ++job->progress.steps_done;
        if (resume || job->progress.steps_done != 5) continue;
        restore_run_folder(scratch.path(), *job);
        save_now(*job, scratch.path(), base::real_disk());
      }
      for (const mesh::NamedTensor& one : gather_whole(*job, parameter_state(*job))) trace.parameters[one.name] = one.tensor.clone();
    });
    return trace;
  };
  const SpectralTrace whole = run(false), resumed = run(true);
  EXPECT_EQ(std::vector<double>(whole.losses.begin() + 5, whole.losses.end()), resumed.losses);
  for (const auto& [name, tensor] : whole.parameters) EXPECT_TRUE(at::equal(tensor, resumed.parameters.at(name))) << name;
}

TEST(Spectral, VisitsPairsRoundByRound) {
  const SpectralTrace trace =
      spectral_steps(1, spectral_recipe({"model.spectral.round_iterations=0", "model.spectral.iteration_steps=2"}), 10);
  EXPECT_LT(trace.coverage[0], trace.coverage[2]);
  EXPECT_LT(trace.coverage[2], trace.coverage[8]);
  EXPECT_GT(trace.coverage[8], 0.5);
}

// Islands agree on what they freeze, and one rank goes on from their model.
TEST(Spectral, TrainsOnIslandsThatMeetSeldom) {
  const harness::ScratchFolder scratch;
  const std::vector<std::string> sets{"train.steps=16", "snapshot.every=8", "model.spectral.iteration_steps=4", "optim.learning_rate=0.01"};
  std::vector<std::string> islands = sets;
  islands.insert(islands.end(), {"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=2"});
  const std::vector<double> together = losses_on(2, spectral_recipe(islands), scratch / "run");
  EXPECT_LT(together.back(), together.front());
  const std::vector<double> alone =
      losses_on(1, spectral_recipe({"train.steps=4", "model.from=" + (scratch / "run").string()}), scratch / "alone");
  EXPECT_LT(alone.front(), 0.97 * together.front());
}

// A snapshot of spectral training is a model for everyone else, and a dense model becomes spectral.
TEST(Spectral, ExportsAndImportsDenseWeights) {
  const harness::ScratchFolder scratch;
  train_on(1, spectral_recipe({"train.steps=6", "snapshot.every=6"}), scratch / "spectral");
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained((scratch / "spectral").string(), quiet);
  ASSERT_TRUE(opened.spectral);
  EXPECT_EQ(opened.spectral->weights.size(), 3u * 7);
  const std::vector<std::string> from{"model.from=" + (scratch / "spectral").string(), "train.steps=2", "train.global_batch=8",
                                      "optim.learning_rate=0.00001", "optim.warmup_steps=0"};
  const std::vector<double> as_dense = losses_on(1, small_decoder("llama", from), scratch / "dense");
  std::vector<std::string> again = from;
  again.insert(again.end(), {"model.spectral.rank=5", "model.spectral.iteration_steps=30"});
  const std::vector<double> as_spectral = losses_on(1, small_decoder("llama", again), scratch / "again");
  EXPECT_NEAR(as_dense.front(), as_spectral.front(), 1e-5 * as_dense.front());
  for (const snapshot::SpectralWeightFile& one : opened.spectral->weights) {
    EXPECT_LT((one.dense(0.1) - one.dense()).norm().item<double>(), 0.3163 * one.dense().norm().item<double>());
    EXPECT_GT((one.dense(0.1) - one.dense()).norm().item<double>(), 0);
  }
}

TEST(Spectral, AllPairsActiveIsFullSpectralTraining) {
  const SpectralTrace trace = spectral_steps(1, spectral_recipe({"model.spectral.rank=12", "optim.learning_rate=0.01"}), 8);
  EXPECT_TRUE(trace.parameters.contains("model.layers.0.self_attn.q_proj.spectral_u_frozen"));   // 24 values
  EXPECT_FALSE(trace.parameters.contains("model.layers.0.self_attn.k_proj.spectral_u_frozen"));  // 12 values
  EXPECT_LT(trace.losses.back(), trace.losses.front());
}

TEST(DrawPairs, FollowTheirProbabilities) {
  const std::vector<float> values{8, 4, 2, 1, 1, 0, 0, 0};
  std::vector<int64_t> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  constexpr int kDraws = 20000;
  for (const auto how : {model::SpectralSampling::mixed, model::SpectralSampling::multinomial, model::SpectralSampling::uniform}) {
    std::vector<double> first(values.size(), 0);
    for (int i = 0; i < kDraws; ++i) {
      const auto drawn = draw_pairs(how, values, ids, 1, 0, base::Random(3).for_index(static_cast<uint64_t>(i)));
      ASSERT_EQ(drawn.size(), 1u);
      first[static_cast<size_t>(drawn[0])] += 1.0 / kDraws;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double by_value = values[i] / 16.0, even = 1.0 / 8;
      const double p = how == model::SpectralSampling::mixed         ? (by_value + even) / 2
                       : how == model::SpectralSampling::multinomial ? by_value
                                                                     : even;
      EXPECT_NEAR(first[i], p, 5 * std::sqrt(p * (1 - p) / kDraws) + 1e-12) << i;
    }
  }
}

TEST(DrawPairs, AreDistinctAndInOrder) {
  const std::vector<float> values{3, 1, 2, 5, 4, 0};
  const std::vector<int64_t> ids{5, 0, 1, 2, 3, 4};
  const base::Random random(1);
  for (const auto how : {model::SpectralSampling::mixed, model::SpectralSampling::multinomial, model::SpectralSampling::uniform}) {
    const auto all = draw_pairs(how, values, ids, 6, 0, random);
    EXPECT_THAT(all, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  }
  EXPECT_THAT(draw_pairs(model::SpectralSampling::top, values, ids, 2, 0, random), testing::ElementsAre(3, 4));
  EXPECT_THAT(draw_pairs(model::SpectralSampling::sequential, values, ids, 2, 0, random), testing::ElementsAre(1, 2));
  EXPECT_THAT(draw_pairs(model::SpectralSampling::sequential, values, ids, 4, 1, random), testing::ElementsAre(0, 1, 2, 5));
}

TEST(Spectral, RefusesWhatItCannotBeCombinedWith) {
  const auto refused = [](std::vector<std::string> sets) { return refusal_of(spectral_recipe(std::move(sets))); };
  EXPECT_THAT(refused({"model.spectral.warmup_steps=2"}), HasSubstr("model.spectral.iteration_steps = 2: vectors would never reach"));
  EXPECT_THAT(refused({"optim.kind=muon"}), HasSubstr("optim.kind = muon: does not work with model.spectral.rank = 5"));
  EXPECT_THAT(refused({"optim.kind=adafactor"}), HasSubstr("Use adamw or sgd"));
  EXPECT_THAT(refused({"train.method=one_byte"}), HasSubstr("train.method = one_byte: does not work with model.spectral.rank = 5"));
  EXPECT_THAT(refused({"train.precision=bf16", "train.parameters=bf16"}),
              HasSubstr("model.spectral.rank = 5: does not work with train.parameters = bf16"));
  EXPECT_THAT(refused({"train.precision=bf16", "train.fp8=layers"}), HasSubstr("does not work with train.fp8"));
  EXPECT_THAT(refused({"model.spectral.rank=13"}), HasSubstr("model.spectral.rank = 13: model.layers.0.self_attn.k_proj.weight has 12"));
  EXPECT_THAT(refused({"model.spectral.rank=0"}), HasSubstr("the other keys of model.spectral have no effect"));
  EXPECT_THAT(refused({"model.kind=classifier", "data.kind=spirals"}), HasSubstr("has no linear layers that can be spectral"));
}

TEST(Spectral, TrueDerivativesAreWarnedOf) {
  const auto said = [](std::vector<std::string> sets) {
    return harness::on_ranks(1, [&](comm::World& world) { build(world, spectral_recipe(sets), {}, {}); }).log.at(0);
  };
  EXPECT_THAT(said({"model.spectral.enhanced=false"}), testing::Contains(HasSubstr("warn: model.spectral.enhanced = false: gradients of")));
  EXPECT_THAT(said({}), testing::Not(testing::Contains(HasSubstr("enhanced"))));
}

TEST(Spectral, RefusesIslandsThatDisagreeAndAdapters) {
  const auto refused = [](std::vector<std::string> sets) {
    const harness::Run ended =
        harness::on_ranks(2, {.expect_errors = true}, [&](comm::World& world) { build(world, spectral_recipe(sets), {}, {}); });
    return std::string(ended.error_on(0).what());
  };
  EXPECT_THAT(refused({"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=4"}),
              HasSubstr("model.spectral.iteration_steps = 2: islands must agree"));
  EXPECT_THAT(refused({"mesh.island=2", "sync.island.kind=noloco"}),
              HasSubstr("sync.island.kind = noloco: does not work with model.spectral.rank = 5"));
  const harness::ScratchFolder scratch;
  train_on(1, small_decoder("llama", {"train.steps=1", "snapshot.every=1"}), scratch / "base");
  EXPECT_THAT(refusal_of(spectral_recipe({"model.from=" + (scratch / "base").string(), "model.adapter.rank=4"})),
              HasSubstr("does not work with model.adapter.rank = 4"));
}

}  // namespace
}  // namespace cairn::train
