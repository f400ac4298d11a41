// recompute.mode = stream in runs: every layout gives the losses and weights of whole sequences.
#include <cmath>
#include <fstream>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/ledger.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "train/build.h"
#include "train/layout_trace.h"
#include "train/refusal.h"
#include "train/report/memory_report.h"
#include "train/take_step.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;

base::Recipe stream_recipe(Sets sets) {
  sets.insert(sets.begin(), {"train.steps=3", "optim.kind=sgd", "optim.learning_rate=0.1", "optim.warmup_steps=1", "eval.fraction=0"});
  return small_decoder("llama", sets);
}

struct StreamRun {
  std::vector<double> losses, norms;
  at::Tensor weights;         // of the first rank
  int64_t reductions = 0;     // messages with gradients, of all ranks
  int64_t reduced_bytes = 0;  // in them
};

StreamRun stream_steps(int ranks, const Sets& sets) {
  StreamRun taken;
  const harness::Run run = harness::on_ranks(ranks, [&](comm::World& world) {
    const auto job = build(world, stream_recipe(sets), {}, {});
    for (int i = 0; i < 3; ++i) {
      const TakenStep step = take_step(*job);
      ++job->progress.steps_done;
      const at::Tensor loss = step.output.loss_sum.to(at::kDouble).clone();
      world.everyone().all_reduce(loss, comm::Reduce::sum, {comm::Purpose::loss, "test"}).wait_host();
      if (world.rank() > 0) continue;
      taken.losses.push_back(loss.item<double>());
      taken.norms.push_back(step.output.gradient_norm.item<double>());
    }
    std::vector<at::Tensor> all;
    for (const parallel::ParameterSlice& piece : job->engine.store->pieces()) all.push_back(piece.value.reshape({-1}).clone());
    if (world.rank() == 0) taken.weights = at::cat(all);
  });
  taken.reductions = run.ledger.total(comm::Purpose::gradient).messages;
  taken.reduced_bytes = run.ledger.total(comm::Purpose::gradient).bytes;
  return taken;
}

const Sets kSlices{"recompute.mode=stream", "recompute.slice=5", "recompute.head_slice=11"};

Sets with_sets(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct StreamCase {
  std::string name;
  int ranks = 1;
  Sets sets = {};
};

class StreamLayouts : public testing::TestWithParam<StreamCase> {};

TEST_P(StreamLayouts, GiveTheResultsOfWholeSequences) {
  const StreamCase& c = GetParam();
  const StreamRun whole = stream_steps(c.ranks, c.sets), sliced = stream_steps(c.ranks, with_sets(c.sets, kSlices));
  for (size_t i = 0; i < whole.losses.size(); ++i) {
    EXPECT_NEAR(sliced.losses[i] / whole.losses[i], 1, 1e-5);
    EXPECT_NEAR(sliced.norms[i] / whole.norms[i], 1, 1e-4);
  }
  EXPECT_LT((sliced.weights - whole.weights).abs().max().item<double>(), 2e-6);
  EXPECT_EQ(sliced.reductions, whole.reductions) << "each gradient is reduced once";
  EXPECT_EQ(sliced.reduced_bytes, whole.reduced_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    All, StreamLayouts,
    testing::Values(
        StreamCase{"plain"}, StreamCase{"untied", 1, {"model.tied=false"}}, StreamCase{"micro_batches", 1, {"train.micro_batch=3"}},
        StreamCase{"dropout", 1, {"model.dropout=0.1"}}, StreamCase{"packed", 1, {"data.packing=documents"}},
        StreamCase{"gpt2", 1, {"model.kind=gpt2", "model.kv_heads=4"}}, StreamCase{"ladder", 1, {"model.residual=ladder"}},
        StreamCase{"gla", 1, {"model.kind=gla"}}, StreamCase{"gla_tp2", 2, {"model.kind=gla", "mesh.tp=2", "model.softmax_layers=1"}},
        StreamCase{"trains_some", 1, {R"(model.train=["role:head", "role:norm"])", "model.tied=false"}},
        StreamCase{"dp2", 2, {"mesh.dp=2"}}, StreamCase{"zero1", 2, {"mesh.dp=2", "memory.zero=1"}},
        StreamCase{"zero2", 3, {"mesh.dp=3", "memory.zero=2", "train.micro_batch=1"}},
        StreamCase{"zero2_sharded_sums", 2, {"mesh.dp=2", "memory.zero=2", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
        StreamCase{"zero3", 2, {"mesh.dp=2", "memory.zero=3"}},
        StreamCase{"zero3_uneven", 2, {"mesh.dp=2", "memory.zero=3", "train.global_batch=3", "train.micro_batch=1"}},
        StreamCase{"zero3_no_prefetch", 2, {"mesh.dp=2", "memory.zero=3", "memory.prefetch_blocks=0"}}, StreamCase{"tp2", 2, {"mesh.tp=2"}},
        StreamCase{"tp2_untied", 2, {"mesh.tp=2", "model.tied=false"}}, StreamCase{"tp2_qwen3", 2, {"mesh.tp=2", "model.kind=qwen3"}},
        StreamCase{"tp2_gpt2", 2, {"mesh.tp=2", "model.kind=gpt2", "model.kv_heads=4"}},
        StreamCase{"tp2_ladder", 2, {"mesh.tp=2", "model.residual=ladder"}},
        StreamCase{"tp2_dropout", 2, {"mesh.tp=2", "model.dropout=0.1"}},
        StreamCase{"tp2_parts", 2, {"mesh.tp=2", "memory.partition_activations=on"}}, StreamCase{"pp2", 2, {"mesh.pp=2"}},
        StreamCase{"cp2", 2, {"mesh.cp=2"}}, StreamCase{"cp3_gather", 3, {"mesh.cp=3", "context.form=gather"}},
        StreamCase{"cp2_qwen3_packed", 2, {"mesh.cp=2", "model.kind=qwen3", "data.packing=documents"}},
        StreamCase{"cp2_ladder", 2, {"mesh.cp=2", "model.residual=ladder"}},
        StreamCase{"cp2_gpt2_dropout", 2, {"mesh.cp=2", "model.kind=gpt2", "model.kv_heads=4", "model.dropout=0.1"}},
        StreamCase{"cp2_tp2_zero3", 4, {"mesh.cp=2", "mesh.tp=2", "memory.zero=3"}},
        StreamCase{"pp2_zb_h1", 2, {"mesh.pp=2", "pipeline.schedule=zb_h1"}},
        StreamCase{"pp2_tp2_zero1", 8, {"mesh.pp=2", "mesh.tp=2", "mesh.dp=2", "memory.zero=1"}}),
    [](const auto& test) { return test.param.name; });

TEST(Stream, TrainsPreferencePairs) {
  const harness::ScratchFolder scratch;
  std::ofstream(scratch.path() / "pairs.jsonl") << R"({"prompt": "Hi", "chosen": "Hello there", "rejected": "Go"}
{"prompt": "Name a fruit", "chosen": "Plum", "rejected": "Stone, a hard one"}
{"prompt": "?", "chosen": "!", "rejected": "..."}
{"prompt": "Good night", "chosen": "Sleep well", "rejected": "No"}
)";
  const Sets pairs{"data.kind=preference", "data.path=" + (scratch.path() / "pairs.jsonl").string(), "train.global_batch=4",
                   "data.chat_template=plain", "data.length=40"};
  for (const auto& [ranks, layout] :
       {std::pair<int, Sets>{1, {}}, {2, {"mesh.tp=2"}}, {2, {"mesh.dp=2", "memory.zero=3"}}, {2, {"mesh.pp=2"}}}) {
    const Sets sets = with_sets(pairs, layout);
    const StreamRun whole = stream_steps(ranks, sets), sliced = stream_steps(ranks, with_sets(sets, kSlices));
    for (size_t i = 0; i < whole.losses.size(); ++i)
      EXPECT_NEAR(sliced.losses[i], whole.losses[i], 1e-5) << (layout.empty() ? "one rank" : layout[0]) << ", step " << i;
    EXPECT_LT((sliced.weights - whole.weights).abs().max().item<double>(), 2e-6) << (layout.empty() ? "one rank" : layout[0]);
  }
}

TEST(Stream, VerifyFindsSlicesThatForgetLaterOnes) {
  const auto trace = [](const Sets& sets, const std::string& plant) {
    LayoutTrace found;
    harness::on_ranks(2, [&](comm::World& world) {
      LayoutTrace own = trace_layout(world, stream_recipe(with_sets({"mesh.tp=2"}, sets)), {.steps = 1, .plant = plant, .cache = {}});
      if (world.rank() == 0) found = std::move(own);
    });
    return found;
  };
  const LayoutTrace whole = trace({}, "");
  EXPECT_EQ(first_difference(trace(kSlices, ""), whole, 1e-5).step, 0);
  const Difference found = first_difference(trace(kSlices, kPlantedSlice), whole, 1e-5);
  EXPECT_EQ(found.step, 1);
  EXPECT_THAT(found.what, testing::HasSubstr("the gradient of "));
}

TEST(Stream, ChoosesSlicesByABudget) {
  const auto slice_of = [](const Sets& sets) {
    int64_t slice = 0;
    harness::on_ranks(1, [&](comm::World& world) {
      slice = build(world, stream_recipe(with_sets({"data.length=96", "recompute.mode=stream"}, sets)), {}, {})->engine.options.slice;
    });
    return slice;
  };
  EXPECT_EQ(slice_of({}), 32) << "a third";
  EXPECT_EQ(slice_of({"recompute.slice=50", "recompute.budget_mib=1"}), 50);
  const int64_t within = slice_of({"recompute.budget_mib=1"});
  EXPECT_LT(within, 96);
  EXPECT_GT(slice_of({"recompute.budget_mib=2"}), within);
}

TEST(Stream, NamesWhatItKeepsInTheMemoryReport) {
  std::string table;
  harness::on_ranks(1, [&](comm::World& world) {
    const auto job = build(world, stream_recipe(with_sets(kSlices, {"log.memory=true", "data.length=300", "recompute.slice=20"})), {}, {});
    take_step(*job);
    table = job->instruments.memory_report->table();
  });
  EXPECT_THAT(table, testing::HasSubstr("stream, q, k, v"));
  EXPECT_THAT(table, testing::HasSubstr("stream, dk, dv"));
}

TEST(Stream, IsRefusedWhereItCannotWork) {
  const auto refused = [](const Sets& sets, const std::string& why) {
    EXPECT_THAT(refusal_of(stream_recipe(with_sets(sets, kSlices))), testing::HasSubstr(why)) << sets[0];
  };
  refused({"train.precision=bf16", "train.fp8=all"}, "not of a slice");
  refused({"train.method=one_byte"}, "over whole sequences");
}

}  // namespace
}  // namespace cairn::train
