// Freezing and surgery between the steps of a run, on every layout: the same answer as on one rank, and nothing frozen is sent.
#include "train/state/surgery.h"

#include <cmath>
#include <filesystem>
#include <functional>
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
#include "save_now.h"
#include "small_decoder.h"
#include "train/active_parts.h"
#include "train/between_steps.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/state/full_state.h"
#include "train/take_step.h"

namespace cairn::train {
namespace {

constexpr const char* kUp = "model.layers.1.mlp.up_proj.weight";
constexpr const char* kGate = "model.layers.1.mlp.gate_proj.weight";
constexpr const char* kDown = "model.layers.1.mlp.down_proj.weight";
constexpr int64_t kMlp = 44;

using StepChange = std::function<void(Job& job, int64_t step)>;

// Calls a function before each step.
class ChangeBetweenSteps final : public BetweenSteps {
 public:
  ChangeBetweenSteps(Job& job, StepChange change) : job_(job), change_(std::move(change)) {}
  void before_step(int64_t step) override { change_(job_, step); }

 private:
  Job& job_;
  StepChange change_;
};

struct Operated {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters, optimizer;  // whole, of the first rank
  std::vector<int64_t> gradient_bytes, parameter_bytes;     // that all ranks have sent after each step
};

struct OperatedRun {
  int ranks = 1;
  std::vector<std::string> sets = {};
  int64_t steps = 6;
};

int64_t sent_for(comm::World& world, comm::Purpose purpose) { return world.ledger().bytes_sent(world.rank(), purpose); }

Operated operated(const OperatedRun& run, const StepChange& change) {
  Operated result;
  std::mutex mutex;
  const harness::Run ended = harness::on_ranks(run.ranks, [&](comm::World& world) {
    std::vector<std::string> sets{"train.global_batch=8", "train.steps=20", "optim.warmup_steps=2", "optim.learning_rate=0.01",
                                  "optim.max_grad_norm=0.5"};
    sets.insert(sets.end(), run.sets.begin(), run.sets.end());
    const std::unique_ptr<Job> job = build(world, small_decoder("llama", sets), {}, {});
    job->between_steps.push_back(std::make_unique<ChangeBetweenSteps>(*job, change));
    Operated mine;
    for (int64_t i = 0; i < run.steps; ++i) {
      const TakenStep taken = take_step(*job);
      ++job->progress.steps_done;
      const at::Tensor loss = taken.output.loss_sum.to(at::kDouble).clone();
      job->engine.step_group->all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "loss"}).wait_host();
      mine.losses.push_back(loss.item<double>() / static_cast<double>(taken.loss_denominator));
      job->engine.store->wait_for_gathers();
      const at::Tensor sent = at::empty({2}, at::kLong);
      sent[0].fill_(sent_for(world, comm::Purpose::gradient));
      sent[1].fill_(sent_for(world, comm::Purpose::parameter));
      job->engine.step_group->all_reduce(sent, comm::Reduce::sum, {comm::Purpose::control, "bytes"}).wait_host();
      mine.gradient_bytes.push_back(sent[0].item<int64_t>());
      mine.parameter_bytes.push_back(sent[1].item<int64_t>());
    }
    for (const mesh::NamedTensor& one : gather_whole(*job, parameter_state(*job))) mine.parameters[one.name] = one.tensor.clone();
    for (const mesh::NamedTensor& one : gather_whole(*job, optimizer_state(*job))) mine.optimizer[one.name] = one.tensor.clone();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

double furthest_tensor(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (const auto& [name, tensor] : a) {
    const double scale = std::max(1e-8, tensor.to(at::kDouble).abs().max().item<double>());
    most = std::max(most, (tensor.to(at::kDouble) - b.at(name).to(at::kDouble)).abs().max().item<double>() / scale);
  }
  return most;
}

void expect_same_trace(const Operated& many, const Operated& one) {
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i + 1;
  EXPECT_LT(furthest_tensor(many.parameters, one.parameters), 2e-4);
  EXPECT_LT(furthest_tensor(many.optimizer, one.optimizer), 2e-3);
}

class OperatedLayouts : public testing::TestWithParam<OperatedRun> {};

const std::vector<OperatedRun>& operated_layouts() {
  static const std::vector<OperatedRun> all{
      {2, {"mesh.dp=2"}},
      {2, {"memory.zero=1"}},
      {2, {"memory.zero=2"}},
      {3, {"memory.zero=3"}},
      {4, {"memory.zero=2", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
      {4, {"mesh.shard=2"}},
      {2, {"mesh.tp=2"}},
      {4, {"mesh.tp=2", "memory.zero=1"}},
      {2, {"mesh.pp=2"}},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, OperatedLayouts, testing::ValuesIn(operated_layouts()), [](const auto& one) {
  std::string name = std::to_string(one.param.ranks);
  for (const std::string& set : one.param.sets)
    for (const char c : "_" + set) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

// Freezes a matrix and a part of another for steps 3 and 4.
void freeze_for_a_while(Job& job, int64_t step) {
  if (step == 1) job.engine.active->track_elements(kUp);
  change_active(job.engine, [&](optim::ActiveOptimizer& active) {
    if (step == 3) active.freeze(kDown, updates_done(job));
    if (step == 3) active.activate(kUp, {mesh::Box{{{3, 20}, {0, 24}}}, mesh::Box{{{25, 44}, {5, 9}}}}, updates_done(job));
    if (step == 5) active.activate(kDown, updates_done(job));
    if (step == 5) active.activate(kUp, updates_done(job));
  });
}

TEST_P(OperatedLayouts, FreezeWhatOneRankFreezes) {
  static const Operated alone = operated({}, freeze_for_a_while);
  expect_same_trace(operated(GetParam(), freeze_for_a_while), alone);
}

TEST(Freezing, StandsStill) {
  std::map<int64_t, at::Tensor> up, down;
  operated({}, [&](Job& job, int64_t step) {
    freeze_for_a_while(job, step);
    for (const parallel::ParameterSlice& one : job.engine.store->pieces()) {
      if (one.name == kUp) up[step] = one.value.clone();
      if (one.name == kDown) down[step] = one.value.clone();
    }
  });
  EXPECT_FALSE(at::equal(down[2], down[3]));
  EXPECT_TRUE(at::equal(down[3], down[5]));
  EXPECT_FALSE(at::equal(down[5], down[6]));
  EXPECT_TRUE(at::equal(up[3].narrow(0, 0, 3), up[5].narrow(0, 0, 3)));
  EXPECT_FALSE(at::equal(up[3].narrow(0, 3, 17), up[5].narrow(0, 3, 17)));
  EXPECT_FALSE(at::equal(up[5].narrow(0, 0, 3), up[6].narrow(0, 0, 3)));
}

// Of a layer's parameters all are frozen, which leaves a unit of ZeRO without any.
TEST_P(OperatedLayouts, SendNothingOfWhatIsFrozen) {
  int64_t frozen_elements = 0;
  const auto freeze_layer = [&](Job& job, int64_t step) {
    if (step != 3 && step != 5) return;
    int64_t elements = 0;
    change_active(job.engine, [&](optim::ActiveOptimizer& active) {
      for (const model::Parameter& one : job.engine.model->parameters()) {
        if (!one.name.starts_with("model.layers.1.") && one.name != "model.layers.2.mlp.up_proj.weight") continue;
        elements += one.elements();
        step == 3 ? active.freeze(one.name, updates_done(job)) : active.activate(one.name, updates_done(job));
      }
    });
    if (job.engine.step_group->rank() == 0) frozen_elements = elements;
  };
  static const Operated alone = operated({}, freeze_layer);
  const Operated found = operated(GetParam(), freeze_layer);
  expect_same_trace(found, alone);
  const bool replicated = GetParam().sets.front() == "mesh.dp=2" && GetParam().sets.size() == 1;
  const auto in_step = [](const std::vector<int64_t>& sent, size_t step) { return sent[step - 1] - sent[step - 2]; };
  const int64_t saved = in_step(found.gradient_bytes, 2) - in_step(found.gradient_bytes, 4);
  if (replicated) {  // in an all-reduce on two ranks each sends as many elements as there are
    EXPECT_EQ(saved, 2 * 4 * frozen_elements);
  }
  if (GetParam().sets.front() != "mesh.pp=2" && GetParam().sets.front() != "mesh.tp=2") {
    EXPECT_GT(saved, 0);
  }
  if (GetParam().sets.size() == 1 && (GetParam().sets.front() == "memory.zero=1" || GetParam().sets.front() == "memory.zero=2")) {
    EXPECT_EQ(saved, 4 * frozen_elements);  // in a reduce-scatter on two ranks, and in an all-gather, each element travels once
    EXPECT_EQ(in_step(found.parameter_bytes, 2) - in_step(found.parameter_bytes, 4), 4 * frozen_elements);
  }
}

std::vector<int64_t> shuffled_channels() {
  std::vector<int64_t> order(kMlp);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = kMlp - 1; i > 0; --i) std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>((i * 7919 + 13) % (i + 1))]);
  return order;
}

// The channels of an MLP in another order: the same function, and the same function after more steps, if moments went along.
void reorder_channels(Job& job, int64_t step) {
  if (step != 4) return;
  const std::vector<int64_t> order = shuffled_channels();
  operate(job, {optim::permutation(kUp, 0, order), optim::permutation(kGate, 0, order), optim::permutation(kDown, 1, order)});
}

TEST_P(OperatedLayouts, ReorderedChannelsComputeTheSameFunctionForGood) {
  static const Operated untouched = operated({}, [](Job&, int64_t) {});
  const Operated found = operated(GetParam(), reorder_channels);
  for (size_t i = 0; i < untouched.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], untouched.losses[i], 1e-5 * untouched.losses[i]) << "step " << i + 1;
  const std::vector<int64_t> order = shuffled_channels();
  const at::Tensor rows = at::empty({kMlp}, at::kLong);
  std::copy(order.begin(), order.end(), rows.mutable_data_ptr<int64_t>());
  for (const char* name : {"exp_avg.", "exp_avg_sq."}) {
    const at::Tensor expected = untouched.optimizer.at(std::string(name) + kUp).index_select(0, rows);
    const at::Tensor difference = found.optimizer.at(std::string(name) + kUp) - expected;
    EXPECT_LT(difference.abs().max().item<double>(), 2e-3 * expected.abs().max().item<double>()) << name;
  }
}

// Rows that leave, rows that come in, moments of a part: the same as on one rank.
void operate_on_rows(Job& job, int64_t step) {
  if (step == 1) job.engine.active->track_elements(kUp);
  if (step == 3) operate(job, {optim::deletion(kUp, 0, kMlp, {5, 40}), optim::insertion(kGate, 0, kMlp, 7, 2), optim::ZeroMoments{kDown}});
  if (step == 4) operate(job, {optim::ZeroMoments{kUp, {mesh::Box{{{2, 9}, {0, 24}}}}}, optim::swap_rows(kUp, kMlp, 1, kGate, kMlp, 30)});
}

TEST_P(OperatedLayouts, OperateOnRowsAsOneRankDoes) {
  static const Operated alone = operated({}, operate_on_rows);
  expect_same_trace(operated(GetParam(), operate_on_rows), alone);
}

TEST(Surgery, MovesWhatIslandsHaveInCommon) {
  const std::vector<std::string> islands{"mesh.island=2", "sync.island.kind=diloco", "sync.island.every=2"};
  const Operated untouched = operated({2, islands, 8}, [](Job&, int64_t) {});
  const Operated found = operated({2, islands, 8}, [](Job& job, int64_t step) {
    if (step == 4) reorder_channels(job, 4);  // in the middle of a round
  });
  for (size_t i = 0; i < untouched.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], untouched.losses[i], 2e-5 * untouched.losses[i]) << "step " << i + 1;
}

TEST(Surgery, IsRefusedWhereMessagesMayBeUnderWay) {
  const harness::Run ended = harness::on_ranks(2, {.expect_errors = true}, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world,
                                           small_decoder("llama", {"mesh.island=2", "sync.island.kind=noloco", "sync.island.every=2",
                                                                   "train.steps=20", "train.global_batch=8"}),
                                           {}, {});
    reorder_channels(*job, 4);
  });
  EXPECT_THAT(ended.error_on(0).what(), testing::HasSubstr("sync.island.kind = noloco: its messages may be under way"));
}

TEST(Surgery, IsRefusedForStateOfWholeRows) {
  const harness::Run ended = harness::on_ranks(1, {.expect_errors = true}, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, small_decoder("llama", {"optim.kind=adafactor"}), {}, {});
    reorder_channels(*job, 4);
  });
  EXPECT_THAT(ended.error_on(0).what(), testing::HasSubstr("optim.kind = adafactor: it keeps"));
}

// A run that saves while a parameter is frozen, and goes on from there.
TEST(Freezing, GoesOnAfterAResume) {
  const harness::ScratchFolder scratch;
  const auto run = [&](bool resume, int64_t steps, bool saves) {
    Operated found;
    harness::on_ranks(1, [&](comm::World& world) {
      Start start;
      start.out = scratch.path();
      start.resume = resume;
      const std::unique_ptr<Job> job = build(world, small_decoder("llama", {"train.steps=20", "train.global_batch=8"}), start, {});
      EXPECT_EQ(job->progress.steps_done, resume ? 3 : 0);
      if (!resume) job->engine.active->set_learning_rate_factor(kGate, 0.5);
      job->between_steps.push_back(std::make_unique<ChangeBetweenSteps>(*job, [](Job& of, int64_t step) {
        change_active(of.engine, [&](optim::ActiveOptimizer& active) {
          if (step == 3) active.freeze(kDown, updates_done(of));
          if (step == 6) active.activate(kDown, updates_done(of));
        });
      }));
      while (job->progress.steps_done < steps) {
        const TakenStep taken = take_step(*job);
        ++job->progress.steps_done;
        found.losses.push_back(taken.output.loss_sum.item<double>());
        if (!saves || job->progress.steps_done != 3) continue;
        restore_run_folder(scratch.path(), *job);
        save_now(*job, scratch.path(), base::real_disk());
      }
      for (const mesh::NamedTensor& one : gather_whole(*job, parameter_state(*job))) found.parameters[one.name] = one.tensor.clone();
    });
    return found;
  };
  const Operated whole = run(false, 8, true), resumed = run(true, 8, false);
  EXPECT_EQ(std::vector<double>(whole.losses.begin() + 3, whole.losses.end()), resumed.losses);
  EXPECT_EQ(furthest_tensor(whole.parameters, resumed.parameters), 0);
}

}  // namespace
}  // namespace cairn::train
