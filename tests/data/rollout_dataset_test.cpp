#include "data/samples/rollout_dataset.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "documents.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::vector<T> column(const mesh::Batch& batch, const char* name) {
  const at::Tensor& tensor = batch.field(name);
  return {tensor.data_ptr<T>(), tensor.data_ptr<T>() + tensor.numel()};
}

std::vector<Rollout> written(const std::string& text) {
  const harness::ScratchFolder folder;
  std::ofstream(folder.path() / "rollouts.jsonl") << text;
  return read_rollouts(folder.path() / "rollouts.jsonl", 30);
}

constexpr const char* kTwo = R"({"tokens": [5, 17, 4, 2], "prompt": 2, "advantage": 0.75, "log_probs": [-1.5, -0.25]}
{"tokens": [6, 7, 8], "prompt": 1, "advantage": -1, "log_probs": [-2, -3]}
)";

TEST(RolloutDataset, PutsLogProbabilitiesBesideTheTargetsTheyBelongTo) {
  const RolloutDataset set(written(kTwo), {.length = 10, .padding = 9}, "a test");
  mesh::Batch batch;
  set.fill(std::vector<int64_t>{0, 1}, batch);
  EXPECT_THAT(column<int64_t>(batch, "tokens"), ElementsAre(5, 17, 4, 6, 7, 9));
  EXPECT_THAT(column<int64_t>(batch, "targets"), ElementsAre(-100, 4, 2, 7, 8, -100));
  EXPECT_THAT(column<float>(batch, "old_log_probs"), ElementsAre(0, -1.5, -0.25, -2, -3, 0));
  EXPECT_THAT(column<float>(batch, "advantages"), ElementsAre(0.75, -1));
  EXPECT_FALSE(batch.fields.contains("reference_log_probs"));
  EXPECT_EQ(set.tokens_in(0), 2);
}

TEST(RolloutDataset, TruncatesAnswersAndLeavesOutPromptsThatFillASample) {
  const RolloutDataset set(written(kTwo), {.length = 1, .padding = 9}, "a test");
  EXPECT_EQ(set.left_out(), 1);
  mesh::Batch batch;
  set.fill(std::vector<int64_t>{0}, batch);
  EXPECT_THAT(column<int64_t>(batch, "targets"), ElementsAre(7));
}

TEST(RolloutDataset, RefusesTheFirstBadLine) {
  const auto refused = [](const std::string& text) { return refusal([&] { written(text); }); };
  EXPECT_THAT(refused("{\"tokens\": [1"), HasSubstr("rollouts.jsonl:1: "));
  EXPECT_THAT(refused(R"({"tokens": [1, 30], "prompt": 1, "advantage": 0})"), HasSubstr("30 is no token id"));
  EXPECT_THAT(refused(R"({"tokens": [1, 3], "prompt": 2, "advantage": 0})"), HasSubstr("a prompt of 2 among 2 tokens"));
  EXPECT_THAT(refused(R"({"tokens": [1, 3], "prompt": 1, "advantage": 0, "log_probs": [-1, -2]})"), HasSubstr("2 numbers for 1"));
  EXPECT_THAT(refused(std::string(kTwo) + R"({"tokens": [1, 3], "prompt": 1, "advantage": 0})"), HasSubstr("on some lines only"));
}

}  // namespace
}  // namespace cairn::data
