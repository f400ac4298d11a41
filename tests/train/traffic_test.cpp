// What a plan says a step sends, against what the trainer's ledger shows for one.
#include "planner/traffic.h"

#include <array>
#include <functional>

#include <gtest/gtest.h>

#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "harness/scratch_folder.h"
#include "planner/rank_bytes.h"
#include "small_decoder.h"
#include "train/layout_trace.h"
#include "train/planned.h"
#include "train/train.h"

namespace cairn::train {
namespace {

struct TrafficLayout {
  std::string name;
  int ranks;
  std::vector<std::string> sets;
  std::string family = "llama";
};

// Odd in every size that may be: 257 rows of the vocabulary, 7 samples of 19 positions, an MLP of 45.
base::Recipe traffic_recipe(const TrafficLayout& c) {
  std::vector<std::string> sets{"model.mlp=45", "eval.every=0", "eval.samples=3"};
  sets.insert(sets.end(), c.sets.begin(), c.sets.end());
  return small_decoder(c.family, sets);
}

using Bytes = std::array<int64_t, comm::kPurposes>;

// All that so many steps of the real trainer send, from the first message to the last.
Bytes sent_in(const TrafficLayout& c, int64_t steps) {
  const base::Stop never;
  comm::LocalNetwork network(c.ranks);
  const auto ended = network.run([&](comm::World& world) {
    base::Recipe recipe = traffic_recipe(c);
    recipe.set("train.steps", steps, "test");
    run(world, std::move(recipe), Start{}, {}, never);
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
  const comm::Ledger ledger = network.ledger();
  Bytes bytes{};
  for (int purpose = 0; purpose < comm::kPurposes; ++purpose)
    bytes[static_cast<size_t>(purpose)] = ledger.total(static_cast<comm::Purpose>(purpose)).bytes;
  return bytes;
}

void expect_as_sent(const TrafficLayout& c) {
  const Planned p = planned(traffic_recipe(c), c.ranks);
  const std::vector<planner::TrafficRow> rows = planner::step_traffic(*p.task.model, p.plan, p.batch, p.rules);
  const Bytes two = sent_in(c, 2), three = sent_in(c, 3);
  int64_t all = 0;
  for (int purpose = 0; purpose < comm::kPurposes; ++purpose) {
    const auto of = static_cast<comm::Purpose>(purpose);
    const int64_t sent = three[static_cast<size_t>(purpose)] - two[static_cast<size_t>(purpose)];
    EXPECT_EQ(planner::bytes_for(rows, of), sent) << c.name << ": " << comm::name(of);
    all += sent;
  }
  EXPECT_GT(all, 0);  // or the test shows nothing
  for (const planner::TrafficRow& row : rows) {
    EXPECT_TRUE(row.predicted) << row.what;
    EXPECT_GT(row.times, 0) << row.what;
    EXPECT_FALSE(row.reason.empty()) << row.what;
    EXPECT_FALSE(row.axis.empty()) << row.what;
  }
}

class StepTraffic : public testing::TestWithParam<TrafficLayout> {};

TEST_P(StepTraffic, IsWhatTheLedgerShows) { expect_as_sent(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Every, StepTraffic,
    testing::Values(
        TrafficLayout{"dp2", 2, {}}, TrafficLayout{"dp3", 3, {"model.tied=false"}},
        TrafficLayout{"dp3_small_buckets", 3, {"sync.dp.bucket_mib=0.01"}}, TrafficLayout{"tp2", 2, {"mesh.tp=2"}},
        TrafficLayout{"tp2_untied_overlap", 2, {"mesh.tp=2", "model.tied=false", "tensor.overlap=true"}},
        TrafficLayout{"tp3_six_heads", 3, {"mesh.tp=3", "model.heads=6", "model.kv_heads=3"}},
        TrafficLayout{"tp4_shares_key_heads", 4, {"mesh.tp=4"}}, TrafficLayout{"dp2_tp2", 4, {"mesh.tp=2"}},
        TrafficLayout{"pp2", 2, {"mesh.pp=2"}}, TrafficLayout{"pp2_untied", 2, {"mesh.pp=2", "model.tied=false"}},
        TrafficLayout{"pp2_tp2", 4, {"mesh.pp=2", "mesh.tp=2"}}, TrafficLayout{"pp2_dp2", 4, {"mesh.pp=2"}},
        TrafficLayout{"pp3_zero_bubble", 3, {"mesh.pp=3", "pipeline.schedule=zb_h1"}},
        TrafficLayout{"zbv", 2, {"mesh.pp=2", "pipeline.schedule=zbv"}},
        TrafficLayout{"interleaved", 2, {"mesh.pp=2", "pipeline.schedule=interleaved", "pipeline.micro_batches=4"}},
        TrafficLayout{"pp2_recompute_stage", 2, {"mesh.pp=2", "recompute.mode=stage"}}, TrafficLayout{"zero1_dp2", 2, {"memory.zero=1"}},
        TrafficLayout{"zero1_dp3", 3, {"memory.zero=1"}}, TrafficLayout{"zero2_dp2", 2, {"memory.zero=2"}},
        TrafficLayout{"zero2_dp3", 3, {"memory.zero=2", "train.micro_batch=1"}},
        TrafficLayout{"zero2_each_micro_batch", 3, {"memory.zero=2", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
        TrafficLayout{"zero3_dp2", 2, {"memory.zero=3"}}, TrafficLayout{"zero3_dp3", 3, {"memory.zero=3", "train.micro_batch=1"}},
        TrafficLayout{"zero3_untied", 3, {"memory.zero=3", "model.tied=false"}},
        TrafficLayout{"zero3_each_micro_batch", 3, {"memory.zero=3", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
        TrafficLayout{"zero3_recompute_full", 3, {"memory.zero=3", "train.micro_batch=1", "recompute.mode=full"}},
        TrafficLayout{
            "zero3_recompute_stage", 3, {"memory.zero=3", "train.micro_batch=1", "recompute.mode=stage", "recompute.except_last=true"}},
        TrafficLayout{"zero3_more_ranks_than_samples", 8, {"memory.zero=3"}}, TrafficLayout{"hybrid", 4, {"mesh.shard=2"}},
        TrafficLayout{"zero3_tp2", 4, {"memory.zero=3", "mesh.tp=2"}}, TrafficLayout{"zero3_pp2", 4, {"memory.zero=3", "mesh.pp=2"}},
        TrafficLayout{"zero1_muon", 3, {"memory.zero=1", "optim.kind=muon"}},
        TrafficLayout{"tp2_muon", 2, {"mesh.tp=2", "optim.kind=muon"}},
        TrafficLayout{"tp4_pp2_muon", 8, {"mesh.tp=4", "mesh.pp=2", "optim.kind=muon"}},
        TrafficLayout{"tp2_zero2_muon", 6, {"mesh.tp=2", "memory.zero=2", "optim.kind=muon"}},
        TrafficLayout{"tp2_adafactor", 4, {"mesh.tp=2", "optim.kind=adafactor"}},
        TrafficLayout{"tp2_zero1_adafactor", 4, {"mesh.tp=2", "memory.zero=1", "optim.kind=adafactor", "optim.relative_step=true"}},
        TrafficLayout{"gpt2_tp3_muon", 3, {"mesh.tp=3", "optim.kind=muon"}, "gpt2"},
        TrafficLayout{"zero2_some_trained", 3, {"memory.zero=2", R"(model.train=["*q_proj*", "*norm*"])"}},
        TrafficLayout{"tp2_some_trained", 2, {"mesh.tp=2", R"(model.train=["*q_proj*", "*norm*"])"}},
        TrafficLayout{"cp2", 2, {"mesh.cp=2"}}, TrafficLayout{"cp3_uneven", 3, {"mesh.cp=3", "context.balanced=false"}},
        TrafficLayout{"cp2_gather", 2, {"mesh.cp=2", "context.form=gather"}},
        TrafficLayout{"cp3_both_ways", 3, {"mesh.cp=3", "context.form=ring_both_ways"}},
        TrafficLayout{"cp3_token_ring", 3, {"mesh.cp=3", "context.form=token_ring"}},
        TrafficLayout{"cp2_tp2_token_ring_documents", 4, {"mesh.cp=2", "mesh.tp=2", "context.form=token_ring", "data.packing=separate"}},
        TrafficLayout{"cp2_ulysses", 2, {"mesh.cp=2", "context.form=ulysses"}},
        TrafficLayout{"cp4_ulysses_ring_recompute", 4, {"mesh.cp=4", "context.form=ulysses:2,ring:2", "recompute.mode=full"}},
        TrafficLayout{"cp2_documents", 2, {"mesh.cp=2", "data.packing=separate"}},
        TrafficLayout{"cp2_tp4_gather", 8, {"mesh.cp=2", "mesh.tp=4", "context.form=gather", "data.packing=documents"}},
        TrafficLayout{"cp2_tp2_zero3", 4, {"mesh.cp=2", "mesh.tp=2", "memory.zero=3"}},
        TrafficLayout{"gla_cp3_documents", 3, {"mesh.cp=3", "context.balanced=false", "data.packing=separate"}, "gla"},
        TrafficLayout{"gla_cp3_lasp1_bf16_states",
                      3,
                      {"mesh.cp=3", "context.balanced=false", "context.linear=lasp1", "context.state_dtype=bf16"},
                      "gla"},
        TrafficLayout{"gla_cp2_tp2_lasp2_recompute",
                      4,
                      {"mesh.cp=2", "mesh.tp=2", "context.balanced=false", "context.linear=lasp2", "recompute.mode=full"},
                      "gla"},
        TrafficLayout{"gla_hybrid_cp2_pp2", 4, {"mesh.cp=2", "mesh.pp=2", "context.balanced=false", "model.softmax_layers=1"}, "gla"},
        TrafficLayout{"pp2_cp2_tp2", 8, {"mesh.pp=2", "mesh.cp=2", "mesh.tp=2", "memory.zero=1"}},
        TrafficLayout{"ladder_tp2", 2, {"model.residual=ladder", "mesh.tp=2"}},
        TrafficLayout{"ladder_tp2_blocking", 2, {"model.residual=ladder", "mesh.tp=2", "tensor.overlap_residual_sums=false"}},
        TrafficLayout{"ladder_some_pp2_tp2", 4, {"model.residual=ladder", "model.ladder_layers=last 2", "mesh.pp=2", "mesh.tp=2"}},
        TrafficLayout{"parallel_tp2_recompute", 2, {"model.residual=parallel", "mesh.tp=2", "recompute.mode=full"}},
        TrafficLayout{"parallel_pp2_tp2", 4, {"model.residual=parallel", "mesh.pp=2", "mesh.tp=2"}},
        TrafficLayout{"tp2_recompute_some", 2, {"mesh.tp=2", "recompute.mode=selective", "recompute.modules=[\"*.mlp\"]"}},
        TrafficLayout{"tp2_recompute_whole", 2, {"mesh.tp=2", "recompute.mode=full", "memory.partition_activations=off"}},
        TrafficLayout{"tp2_recompute_parts", 2, {"mesh.tp=2", "recompute.mode=full", "memory.partition_activations=on"}},
        TrafficLayout{"ladder_tp2_recompute", 2, {"model.residual=ladder", "mesh.tp=2", "recompute.mode=full"}},
        TrafficLayout{"ladder_tp2_recompute_parts",
                      2,
                      {"model.residual=ladder", "mesh.tp=2", "recompute.mode=full", "memory.partition_activations=on"}},
        TrafficLayout{"ladder_tp2_recompute_whole",
                      2,
                      {"model.residual=ladder", "mesh.tp=2", "recompute.mode=full", "memory.partition_activations=off"}},
        TrafficLayout{
            "pp2_tp2_whole",
            4,
            {"mesh.pp=2", "mesh.tp=2", "pipeline.scatter_boundaries=false", "memory.partition_activations=off", "recompute.mode=stage"}},
        TrafficLayout{"ladder_pp2_tp2_stage", 4, {"model.residual=ladder", "mesh.pp=2", "mesh.tp=2", "recompute.mode=stage"}},
        TrafficLayout{"ladder_pp2_tp2_stage_parts",
                      4,
                      {"model.residual=ladder", "mesh.pp=2", "mesh.tp=2", "recompute.mode=stage", "memory.partition_activations=on"}},
        TrafficLayout{"ladder_pp2_tp2_whole", 4, {"model.residual=ladder", "mesh.pp=2", "mesh.tp=2", "pipeline.scatter_boundaries=false"}},
        TrafficLayout{"pp2_cp2_tp2_whole", 8, {"mesh.pp=2", "mesh.cp=2", "mesh.tp=2", "pipeline.scatter_boundaries=false"}},
        TrafficLayout{"tp2_stream", 2, {"mesh.tp=2", "recompute.mode=stream"}},
        TrafficLayout{"tp2_stream_parts", 2, {"mesh.tp=2", "recompute.mode=stream", "memory.partition_activations=on"}},
        TrafficLayout{"cp2_tp2_stream", 4, {"mesh.cp=2", "mesh.tp=2", "recompute.mode=stream", "memory.zero=3"}},
        TrafficLayout{"pp2_tp2_stream", 4, {"mesh.pp=2", "mesh.tp=2", "recompute.mode=stream"}},
        TrafficLayout{"zero3_no_prefetch", 3, {"memory.zero=3", "memory.prefetch_blocks=0"}},
        TrafficLayout{"zero3_prefetch4", 3, {"memory.zero=3", "memory.prefetch_blocks=4", "train.micro_batch=1", "recompute.mode=full"}},
        TrafficLayout{"gpt2_tp2", 2, {"mesh.tp=2"}, "gpt2"}, TrafficLayout{"gpt2_tp3", 3, {"mesh.tp=3"}, "gpt2"},
        TrafficLayout{"gpt2_pp2_tp2", 4, {"mesh.pp=2", "mesh.tp=2"}, "gpt2"},
        TrafficLayout{"gpt2_zero3_cp2", 4, {"memory.zero=3", "mesh.cp=2"}, "gpt2"}, TrafficLayout{"qwen3_tp2", 2, {"mesh.tp=2"}, "qwen3"},
        TrafficLayout{"bf16_zero3_tp2", 4, {"train.precision=bf16", "memory.zero=3", "mesh.tp=2"}},
        TrafficLayout{"bf16_pp2_cp2", 4, {"train.precision=bf16", "mesh.pp=2", "mesh.cp=2"}},
        TrafficLayout{"skips_bad_steps", 2, {"train.on_bad_step=skip"}}, TrafficLayout{"dp12", 12, {}},
        TrafficLayout{"zero3_dp12", 12, {"memory.zero=3"}}, TrafficLayout{"islands", 6, {"mesh.island=3", "mesh.tp=2"}},
        TrafficLayout{"classifier_pp2", 4, {"data.kind=spirals", "mesh.pp=2", "model.batch_norm=true"}, "classifier"}),
    [](const auto& c) { return c.param.name; });

TEST(StepTrafficOfAdapters, IsWhatTheLedgerShows) {
  const harness::ScratchFolder scratch;
  const base::Stop never;
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         base::Recipe recipe = traffic_recipe({"base", 1, {}});
         recipe.set("train.steps", int64_t{1}, "test");
         Start start;
         start.out = scratch / "base";
         run(world, std::move(recipe), start, {}, never);
       }))
    if (error) std::rethrow_exception(error);
  const std::vector<std::string> adapters{"model.from=" + (scratch / "base").string(), "model.lora.rank=3"};
  for (TrafficLayout c : std::vector<TrafficLayout>{{"tp2", 2, {"mesh.tp=2"}}, {"zero2", 3, {"memory.zero=2"}}}) {
    c.sets.insert(c.sets.end(), adapters.begin(), adapters.end());
    expect_as_sent(c);
  }
}

// Pairs are as long as the longest of a batch, so activations have a bound. What is gathered of sharded weights is exact.
TEST(StepTrafficOfPreferences, CountsTheGathersOfTheReferenceModel) {
  const harness::ScratchFolder scratch;
  const std::string path = scratch
                               .file("pairs.jsonl", R"({"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}
{"prompt": "1", "chosen": "2", "rejected": "three"}
{"prompt": "?", "chosen": "!", "rejected": "..."}
)")
                               .string();
  for (TrafficLayout c : std::vector<TrafficLayout>{{"zero3", 2, {"memory.zero=3", "train.micro_batch=1"}},
                                                    {"zero3_prefetch", 3, {"memory.zero=3", "memory.prefetch_blocks=2"}},
                                                    {"zero3_some", 2, {"memory.zero=3", R"(model.train=["*q_proj*", "*norm*"])"}},
                                                    {"pp_zero3", 4, {"memory.zero=3", "mesh.pp=2"}},
                                                    {"pp_tp", 4, {"mesh.pp=2", "mesh.tp=2"}},
                                                    {"cp", 2, {"mesh.cp=2"}}}) {
    const std::vector<std::string> pairs{"data.kind=preference", "data.path=" + path, "data.template=plain", "train.global_batch=3"};
    c.sets.insert(c.sets.end(), pairs.begin(), pairs.end());
    const Planned p = planned(traffic_recipe(c), c.ranks);
    const std::vector<planner::TrafficRow> rows = planner::step_traffic(*p.task.model, p.plan, p.batch, p.rules);
    const Bytes two = sent_in(c, 2), three = sent_in(c, 3);
    const auto sent = [&](comm::Purpose of) { return three[static_cast<size_t>(of)] - two[static_cast<size_t>(of)]; };
    EXPECT_EQ(planner::bytes_for(rows, comm::Purpose::parameter), sent(comm::Purpose::parameter)) << c.name;
    EXPECT_EQ(planner::bytes_for(rows, comm::Purpose::gradient), sent(comm::Purpose::gradient)) << c.name;
    EXPECT_GE(planner::bytes_for(rows, comm::Purpose::activation), sent(comm::Purpose::activation)) << c.name;
  }
}

// Which experts tokens choose is not known beforehand: rows have an expected number, all else is exact.
class ExpertTraffic : public testing::TestWithParam<TrafficLayout> {};

TEST_P(ExpertTraffic, IsWhatTheLedgerShows) {
  TrafficLayout c = GetParam();
  c.family = "mixtral";
  c.sets.insert(c.sets.end(), {"model.moe.experts=6", "model.moe.width=20", "model.moe.top_k=3"});
  const Planned p = planned(traffic_recipe(c), c.ranks);
  const std::vector<planner::TrafficRow> rows = planner::step_traffic(*p.task.model, p.plan, p.batch, p.rules);
  const Bytes two = sent_in(c, 2), three = sent_in(c, 3);
  for (int purpose = 0; purpose < comm::kPurposes; ++purpose) {
    const auto of = static_cast<comm::Purpose>(purpose);
    const int64_t sent = three[static_cast<size_t>(purpose)] - two[static_cast<size_t>(purpose)];
    if (of != comm::Purpose::activation) {
      EXPECT_EQ(planner::bytes_for(rows, of), sent) << comm::name(of);
      continue;
    }
    EXPECT_GT(sent, 0);  // or the test shows nothing
    EXPECT_NEAR(static_cast<double>(planner::bytes_for(rows, of)), static_cast<double>(sent), 0.3 * static_cast<double>(sent));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ExpertTraffic,
                         testing::Values(TrafficLayout{"ep2", 2, {"mesh.ep=2"}}, TrafficLayout{"ep4_uneven", 4, {"mesh.ep=4"}},
                                         TrafficLayout{"dp2_ep2_zero1", 4, {"mesh.ep=2", "memory.zero=1"}},
                                         TrafficLayout{"dp3_ep2_zero2", 6, {"mesh.ep=2", "memory.zero=2", "train.micro_batch=1"}},
                                         TrafficLayout{"dp2_ep2_zero3", 4, {"mesh.ep=2", "memory.zero=3"}},
                                         TrafficLayout{"tp2_ep2", 4, {"mesh.tp=2", "mesh.ep=2"}},
                                         TrafficLayout{"pp2_ep2", 4, {"mesh.pp=2", "mesh.ep=2"}},
                                         TrafficLayout{"ep3_recompute", 3, {"mesh.ep=3", "recompute.mode=full"}}),
                         [](const auto& c) { return c.param.name; });

TEST(RankBytes, AreWhatTheStoreHolds) {
  for (const TrafficLayout& c : std::vector<TrafficLayout>{{"dp", 2, {}},
                                                           {"zero1", 3, {"memory.zero=1"}},
                                                           {"zero2", 3, {"memory.zero=2"}},
                                                           {"zero3_tp", 4, {"memory.zero=3", "mesh.tp=2"}},
                                                           {"pp", 2, {"mesh.pp=2"}},
                                                           {"bf16", 3, {"train.precision=bf16", "memory.zero=1"}},
                                                           {"some", 3, {"memory.zero=2", R"(model.train=["*q_proj*", "*norm*"])"}}}) {
    LayoutTrace recorded;
    for (const std::exception_ptr& error : comm::LocalNetwork(c.ranks).run([&](comm::World& world) {
           LayoutTrace own = trace_layout(world, traffic_recipe(c), {.steps = 1, .tensors = false, .plant = "", .cache = {}});
           if (world.rank() == 0) recorded = std::move(own);
         }))
      if (error) std::rethrow_exception(error);
    const Planned p = planned(traffic_recipe(c), c.ranks);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const planner::RankBytes expected = planner::rank_bytes(*p.task.model, p.plan, p.rules, rank);
      EXPECT_EQ(expected.parameters, recorded.memory[static_cast<size_t>(rank)].parameters) << c.name << " rank " << rank;
      EXPECT_EQ(expected.gradients, recorded.memory[static_cast<size_t>(rank)].gradients) << c.name << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace cairn::train
