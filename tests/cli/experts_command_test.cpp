// `cairn experts place` and `cairn generate --mesh ep=N`, run as a user would run them.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/program.h"
#include "data/stories/stories.h"

namespace cairn::cli {
namespace {

class ExpertsCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    const auto train = [&](const std::string& out, const std::string& seed) {
      std::vector<std::string> arguments = tiny({"train", "--out", out, "--seed", seed, "--set", "train.steps=4", "--set",
                                                 "model.kind=mixtral", "--set", "model.moe.experts=4", "--set", "model.moe.top_k=1"});
      for (std::string& one : arguments)
        if (one == "data.length=16") one = "data.length=96";
      for (std::string& one : arguments)
        if (one == "model.layers=1") one = "model.layers=3";
      const Outcome outcome = cairn(*scratch, arguments);
      ASSERT_EQ(outcome.code, 0) << outcome.output;
    };
    train("run", "1"), train("other", "2");
    scratch->file("text.txt", data::stories(7, 0, 30));
    const Outcome placed = place("run", "ep=2", "placement.json", {"--tokens", "500", "--trace", "trace.npy"});
    ASSERT_EQ(placed.code, 0) << placed.output;
    printed = placed.output;
  }
  static void TearDownTestSuite() { scratch.reset(); }

  static Outcome place(const std::string& run, const std::string& mesh, const std::string& out, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"experts", "place", run, "--data", "text.txt", "--mesh", mesh, "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return cairn(*scratch, arguments);
  }

  static Outcome generate(const std::string& run, std::vector<std::string> more) {
    std::vector<std::string> arguments{"generate", run, "--prompt", "One day", "--samples", "3", "--tokens", "6", "--ignore-end", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return cairn(*scratch, arguments);
  }

  static std::vector<base::Json> ids_of(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    std::vector<base::Json> found;
    for (size_t at = 0; (at = outcome.output.find("{\"prompt\"", at)) != std::string::npos; ++at)
      found.push_back(base::parse_json(outcome.output.substr(at, outcome.output.find('\n', at) - at))["ids"]);
    return found;
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
  static std::string printed;
};
std::unique_ptr<harness::ScratchFolder> ExpertsCommand::scratch;
std::string ExpertsCommand::printed;

TEST_F(ExpertsCommand, PrintsHopsBeforeAndAfterAndWritesTheTrace) {
  EXPECT_NE(printed.find("4 experts in 3 layers on 2 ranks, from 500 tokens"), std::string::npos) << printed;
  EXPECT_NE(printed.find("on the 500 tokens after these"), std::string::npos) << printed;
  const auto hops = [&](const std::string& line) { return std::stod(printed.substr(printed.find(line) + line.size())); };
  EXPECT_LE(hops("after   "), hops("before  "));
  EXPECT_EQ(std::filesystem::file_size(*scratch / "trace.npy") % 64, 500 * 3 * 2 % 64);
}

TEST_F(ExpertsCommand, GivesTheTextsOfOneRankInBothFlows) {
  const std::vector<base::Json> one = ids_of(generate("run", {}));
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(ids_of(generate("run", {"--mesh", "ep=2"})), one);
  EXPECT_EQ(ids_of(generate("run", {"--mesh", "ep=2", "--flow", "exflow", "--placement", "placement.json"})), one);
  EXPECT_EQ(ids_of(generate("run", {"--mesh", "ep=4", "--flow", "exflow", "--transport", "local"})), one);
}

TEST_F(ExpertsCommand, RefusesPlacementsOfAnotherModelOrMesh) {
  const auto refused = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  };
  const std::vector<std::string> placed{"--mesh", "ep=2", "--flow", "exflow", "--placement", "placement.json"};
  EXPECT_NE(refused(generate("other", placed)).find("placement.json: is a placement for model "), std::string::npos);
  EXPECT_NE(
      refused(generate("run", {"--mesh", "ep=4", "--placement", "placement.json"})).find("is a placement for mesh ep=2, this run has ep=4"),
      std::string::npos);
  EXPECT_NE(refused(generate("run", {"--flow", "exflow"})).find("--flow exflow: is for experts on several ranks; add --mesh ep=N"),
            std::string::npos);
  EXPECT_NE(refused(generate("run", {"--mesh", "ep=3", "--flow", "exflow"})).find("4 experts do not divide over 3 ranks"),
            std::string::npos);
  EXPECT_NE(refused(place("run", "ep=3", "no.json")).find("--mesh ep=3: 4 experts do not divide over 3 ranks; use a divisor of 4"),
            std::string::npos);
  EXPECT_NE(refused(place("run", "dp=2", "no.json")).find("--mesh dp=2: generation has no axis dp"), std::string::npos);
}

}  // namespace
}  // namespace cairn::cli
