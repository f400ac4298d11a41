// Training with linear attention: refusals, hybrids, decays.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "refusal.h"
#include "small_decoder.h"
#include "train/layout_trace.h"
#include "train/train.h"

namespace cairn::train {
namespace {

LayoutTrace traced(int ranks, const std::vector<std::string>& sets) {
  LayoutTrace trace;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         LayoutTrace own = trace_layout(world, small_decoder("gla", sets), {.steps = 2, .tensors = true, .plant = {}, .cache = {}});
         if (world.rank() == 0) trace = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return trace;
}

TEST(LinearAttentionTraining, GivesTheSameGradientsCutOverRanksForEveryKindOfLayer) {
  for (const std::vector<std::string>& sets :
       std::vector<std::vector<std::string>>{{"model.decay=constant"},
                                             {"model.decay=constant", "model.heads=6", "model.kv_heads=6", "mesh.tp=4"},
                                             {"model.decay=none"},
                                             {"model.softmax_layers=1"},
                                             {"model.expand_k=1", "model.expand_v=2"}}) {
    std::vector<std::string> cut = sets, whole = sets;
    const bool tp = sets.back().starts_with("mesh.tp");
    if (tp) whole.pop_back();
    if (!tp) cut.insert(cut.end(), {"mesh.cp=3", "context.balanced=false"});
    const Difference found = first_difference(traced(tp ? 4 : 3, cut), traced(1, whole), 1e-5);
    EXPECT_EQ(found.step, 0) << sets[0] << ": " << found.what << " by " << found.largest << " of " << found.scale;
  }
}

// Documents of a few tokens: some start inside slices, some on their first token.
TEST(LinearAttentionTraining, ForgetsTheDocumentBeforeOnEveryNumberOfRanks) {
  const std::vector<std::string> documents{"data.length=41", "data.packing=separate"};
  const LayoutTrace alone = traced(1, documents), unseparated = traced(1, {"data.length=41"});
  EXPECT_NE(first_difference(alone, unseparated, 1e-3).step, 0) << "no document starts inside a sample, so the test shows nothing";
  for (const int ranks : {2, 3, 5})
    for (const std::string form : {"zeco", "lasp1", "lasp2"}) {
      std::vector<std::string> cut = documents;
      cut.insert(cut.end(), {fmt::format("mesh.cp={}", ranks), "context.balanced=false", "context.linear=" + form});
      const Difference found = first_difference(traced(ranks, cut), alone, 1e-5);
      EXPECT_EQ(found.step, 0) << ranks << " ranks, " << form << ": " << found.what << " by " << found.largest << " of " << found.scale;
    }
}

std::string joined(const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

TEST(LinearAttentionTraining, SaysAtStartHowStatesTravel) {
  const base::Stop never;
  const auto log_of = [&](const std::vector<std::string>& sets) {
    return harness::on_ranks(2, [&](comm::World& world) { run(world, small_decoder("gla", sets), {}, {}, never); }).log.at(0);
  };
  const std::string usual = joined(log_of({"mesh.cp=2", "context.balanced=false", "context.scan_blocks=1000", "train.steps=1"}));
  // 7 sequences, 4 heads of 3 key dims: 84 rows of 6 floats.
  EXPECT_NE(usual.find("3 layers of linear attention along cp = 2: zeco in 84 blocks (not 1000: a state has no more rows)"), std::string::npos) << usual;
  EXPECT_EQ(usual.find("bf16"), std::string::npos) << usual;
  const std::string narrow = joined(log_of({"mesh.cp=2", "context.balanced=false", "context.state_dtype=bf16", "train.steps=1"}));
  EXPECT_NE(narrow.find("context.state_dtype = bf16: states are rounded"), std::string::npos) << narrow;
}

TEST(LinearAttentionTraining, RefusesSlicesThatAreNotInTheOrderOfTokens) {
  const base::Stop never;
  const harness::Run ended = harness::on_ranks(2, {.expect_errors = true},
                                               [&](comm::World& world) { run(world, small_decoder("gla", {"mesh.cp=2"}), {}, {}, never); });
  EXPECT_NE(std::string(ended.error_on(0).what()).find("Set context.balanced = false"), std::string::npos) << ended.error_on(0).what();
}

TEST(LinearAttentionTraining, RefusesItsKeysForModelsWithoutIt) {
  EXPECT_NE(refusal_of(small_decoder("llama", {"context.linear=lasp2"}))
                .find("context.linear = lasp2: model.kind = llama has no linear attention"),
            std::string::npos);
  EXPECT_NE(refusal_of(small_decoder("llama", {"context.state_dtype=bf16"}))
                .find("context.state_dtype = bf16: model.kind = llama has no linear attention"),
            std::string::npos);
  EXPECT_NE(refusal_of(small_decoder("gla", {"context.state_dtype=fp16"})).find("context.state_dtype"), std::string::npos);
  EXPECT_NE(refusal_of(small_decoder("llama", {"model.decay=none"})).find("it has no linear attention"), std::string::npos);
}

TEST(LinearAttentionTraining, RefusesWhatItCannotCompute) {
  EXPECT_NE(refusal_of(small_decoder("gla", {"model.chunk=48"})).find("model.chunk = 48: must be a power of two"), std::string::npos);
  EXPECT_NE(refusal_of(small_decoder("gla", {"model.expand_k=0.3"})).find("model.expand_k = 0.3"), std::string::npos);
  EXPECT_NE(refusal_of(small_decoder("gla", {"context.linear=lasp1", "context.scan_blocks=4"})).find("only zeco sends states in blocks"),
            std::string::npos);
  EXPECT_NE(refusal_of(small_decoder("gla", {"train.precision=bf16", "train.fp8=layers"})).find("leave train.fp8 out"), std::string::npos);
}

}  // namespace
}  // namespace cairn::train
