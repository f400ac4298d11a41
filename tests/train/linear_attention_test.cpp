// Training with linear attention: refusals, hybrids, decays.
#include <gtest/gtest.h>

#include "harness/scratch_folder.h"
#include "refusal.h"
#include "small_decoder.h"
#include "train_on.h"

namespace cairn::train {
namespace {

TEST(LinearAttentionTraining, GivesTheSameLossesCutOverRanksForEveryKindOfLayer) {
  const harness::ScratchFolder folder;
  int run = 0;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"model.decay=constant"}, {"model.decay=none"}, {"model.softmax_layers=1"}, {"model.expand_k=1", "model.expand_v=2"}}) {
    std::vector<std::string> cut = sets;
    cut.insert(cut.end(), {"mesh.cp=3", "context.balanced=false"});
    const std::vector<double> one = losses_on(1, small_decoder("gla", sets), folder / std::to_string(run++));
    const std::vector<double> three = losses_on(3, small_decoder("gla", cut), folder / std::to_string(run++));
    ASSERT_EQ(one.size(), three.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], three[i], 2e-5) << sets[0];
  }
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
