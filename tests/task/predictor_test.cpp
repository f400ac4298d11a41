#include "task/predictor.h"

#include <numeric>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "line_fit.h"
#include "task/mlp.h"

namespace cairn::task {
namespace {

using testing::HasSubstr;

// Outputs of several kinds: a perceptron's, a random number's, the place that the example had.
Task<Dot> outputs_task() {
  Task<Dot> task = line_fit();
  task.predict = [](const base::Random& random, const Params& params, const Batch& batch) -> Outputs {
    const at::Tensor y = run_mlp(params, at::cat(std::vector<at::Tensor>{batch.field("x"), batch.field("y").unsqueeze(1)}, 1));
    return {
        {"y", y}, {"drawn", uniform(random, {batch.samples()}).to(at::kDouble)}, {"place", batch.ids.clone()}, {"up", y.argmax(-1) > 2}};
  };
  task.postprocess = [](const Outputs& outputs) {
    std::vector<std::string> texts;
    for (int64_t i = 0; i < outputs.at("place").size(0); ++i) texts.push_back(std::to_string(outputs.at("place")[i].item<int64_t>()));
    return texts;
  };
  return task;
}

Outputs predicted(int ranks, int64_t examples, int64_t batch) {
  std::vector<Outputs> all(static_cast<size_t>(ranks));
  harness::on_ranks(ranks, [&](comm::World& world) {
    Deployer deployer(world, {.seed = 5});
    const Predictor predictor(deployer, outputs_task(), batch);
    all[static_cast<size_t>(world.rank())] = predictor.predict(mlp({2, 33, 5}, base::Random(4)), dots(examples));
  });
  for (const Outputs& one : all)
    for (const auto& [name, tensor] : one) EXPECT_TRUE(tensor.equal(all[0].at(name))) << name;
  return all[0];
}

// The sheet's sixth item is the first row.
TEST(Predictor, GivesTheSameBitsInOrderForAnyNumberOfRanks) {
  struct Case {
    int64_t examples, batch;
    int ranks;
  };
  for (const Case& c : {Case{103, 8, 3}, {103, 8, 5}, {1, 8, 3}, {7, 1, 2}, {16, 8, 2}, {17, 8, 2}, {8, 64, 4}}) {
    SCOPED_TRACE(testing::Message() << c.examples << " examples, batch " << c.batch << ", " << c.ranks << " ranks");
    const Outputs alone = predicted(1, c.examples, c.batch), shared = predicted(c.ranks, c.examples, c.batch);
    EXPECT_EQ(alone.at("y").sizes(), at::IntArrayRef({c.examples, 5}));
    EXPECT_TRUE(shared.at("place").equal(at::arange(c.examples, at::kLong)));
    EXPECT_EQ(shared.at("up").scalar_type(), at::kBool);
    ASSERT_EQ(shared.size(), 4u);
    for (const auto& [name, tensor] : shared) EXPECT_TRUE(tensor.equal(alone.at(name))) << name;
  }
}

TEST(Predictor, MakesATextForEachExample) {
  harness::on_ranks(2, [](comm::World& world) {
    Deployer deployer(world);
    const Params params = mlp({2, 3, 5}, base::Random(4));
    EXPECT_THAT(Predictor(deployer, outputs_task(), 2).texts(params, dots(5)), testing::ElementsAre("0", "1", "2", "3", "4"));
    EXPECT_TRUE(Predictor(deployer, outputs_task(), 2).texts(params, {}).empty());
  });
}

TEST(Predictor, RefusesWhatDoesNotFitItsExamples) {
  const auto refusal = [](const std::function<void(Task<Dot>&)>& spoil, int64_t batch = 4, bool texts = false) {
    return refused_on(1, [&](Deployer& deployer) {
      Task<Dot> task = outputs_task();
      spoil(task);
      const Predictor predictor(deployer, task, batch);
      if (texts) predictor.texts(mlp({2, 3, 5}, base::Random(4)), dots(6));
      predictor.predict(mlp({2, 3, 5}, base::Random(4)), dots(6));
    });
  };
  EXPECT_THAT(refusal([](Task<Dot>& task) {
                task.predict = [](const base::Random&, const Params&, const Batch&) -> Outputs { return {{"y", at::ones({3, 2})}}; };
              }),
              HasSubstr("predict's output \"y\" is [3, 2]: its first dim must be the batch, 4 examples"));
  EXPECT_THAT(refusal([](Task<Dot>& task) {
                task.predict = [](const base::Random&, const Params&, const Batch& batch) -> Outputs {
                  return {{"y", at::ones({4, batch.ids[0].item<int64_t>() + 1})}};
                };
              }),
              HasSubstr("predict's output \"y\" differs in shape or dtype from batch to batch"));
  EXPECT_THAT(refusal([](Task<Dot>& task) { task.predict = nullptr; }), HasSubstr("the task has no predict"));
  EXPECT_THAT(refusal([](Task<Dot>&) {}, 0), HasSubstr("a predictor's batch is 0: must be at least 1"));
  EXPECT_THAT(refusal([](Task<Dot>& task) { task.postprocess = nullptr; }, 4, true), HasSubstr("the task has no postprocess"));
  EXPECT_THAT(refusal([](Task<Dot>& task) { task.postprocess = [](const Outputs&) { return std::vector<std::string>{"one"}; }; }, 4, true),
              HasSubstr("postprocess made 1 texts from the outputs of 6 examples"));
}

}  // namespace
}  // namespace cairn::task
