// The examples at a size that takes a moment; `cairn prove redco` runs them whole.
#include "examples/examples.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "comm/world.h"
#include "examples/blobs.h"
#include "harness/ranks.h"
#include "task/deployer.h"

namespace cairn::examples {
namespace {

TEST(Examples, RunOnOneRankAndOnTwo) {
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.name);
    for (const int ranks : {1, 2}) {
      std::vector<Outcome> all(static_cast<size_t>(ranks));
      harness::on_ranks(ranks, [&](comm::World& world) {
        task::Deployer deployer(world, {.seed = 2});
        all[static_cast<size_t>(world.rank())] = example.run(deployer, /*quick=*/true);
      });
      EXPECT_TRUE(std::isfinite(all[0].reached));
      EXPECT_EQ(all.front().reached, all.back().reached);
    }
  }
}

TEST(Examples, AreShortEnoughToReadAtAGlance) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(CAIRN_SOURCE_DIR) / "examples")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    EXPECT_LE(lines, 120) << entry.path();
    ++seen;
  }
  EXPECT_GE(seen, 7);
}

// The page shows the example as it is.
TEST(Examples, StandInThePageAboutThem) {
  const auto text_of = [](const std::string& name) {
    std::ifstream file(std::filesystem::path(CAIRN_SOURCE_DIR) / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string page = text_of("docs/guides/tasks.md"), example = text_of("examples/federated_averaging.cpp");
  ASSERT_GT(example.size(), 500u);
  EXPECT_NE(page.find(example), std::string::npos) << "copy examples/federated_averaging.cpp into docs/guides/tasks.md";
}

// No example may change the sum by more than the clip, whatever it is.
TEST(PrivateSgd, ClipsEachExampleAndAddsNoiseOfTheStatedSize) {
  const base::Random random(3);
  const task::TrainStep step = private_step();
  const task::Params params = task::mlp({8, 5, 4}, random);
  std::vector<Point> one = blobs(random.for_name("c"), random.for_name("p"), 1, 4, 8, 3);
  for (const float scale : {1e-3F, 1.0F, 1e4F}) {
    Point point = one[0];
    for (float& x : point.x) x *= scale;
    double squares = 0, numbers = 0, noise = 0;
    const task::Params sums = step.part(random, params, classification().collate(std::vector<Point>{point})).sums;
    for (const mesh::NamedTensor& tensor : sums.all()) squares += tensor.tensor.square().sum().item<double>();
    EXPECT_LE(std::sqrt(squares), kPrivateClip * 1.0001);
    const task::Params noised = step.finish(random, sums);
    for (const mesh::NamedTensor& tensor : sums.all())
      noise += (noised[tensor.name] - tensor.tensor).square().sum().item<double>(), numbers += static_cast<double>(tensor.tensor.numel());
    EXPECT_NEAR(std::sqrt(noise / numbers), kPrivateNoise * kPrivateClip, 0.25);  // 69 numbers: three deviations
  }
}

}  // namespace
}  // namespace cairn::examples
