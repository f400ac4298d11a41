#include "train/report/run_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::train {
namespace {

TEST(RunState, IsReadAsItWasWritten) {
  const RunState state = parse_run_state(to_json({.step = 3,
                                                  .tokens = 48,
                                                  .seconds = 1.5,
                                                  .seed = 7,
                                                  .updates_skipped = 2,
                                                  .rollbacks = 1,
                                                  .batches_passed = 4,
                                                  .next_sample = 15}),
                                         "state.json");
  EXPECT_EQ(state.step, 3);
  EXPECT_EQ(state.tokens, 48);
  EXPECT_EQ(state.seconds, 1.5);
  EXPECT_EQ(state.seed, 7);
  EXPECT_EQ(state.updates_skipped, 2);
  EXPECT_EQ(state.rollbacks, 1);
  EXPECT_EQ(state.batches_passed, 4);
  EXPECT_FALSE(state.apart);
  EXPECT_FALSE(state.round_unfinished);
  EXPECT_TRUE(parse_run_state(to_json({.apart = true}), "state.json").apart);
  EXPECT_TRUE(parse_run_state(to_json({.round_unfinished = true}), "state.json").round_unfinished);
}

TEST(RunState, NeedsStepAndTokensOnly) {
  const RunState state = parse_run_state(R"({"step": 3, "tokens": 48})", "state.json");
  EXPECT_EQ(state.seconds, 0);
  EXPECT_FALSE(state.seed);
  EXPECT_EQ(state.batches_passed, 0);
}

TEST(RunState, RefusesWhatIsNoCount) {
  for (const char* bad : {"-1", "1.5", "\"many\""}) {
    try {
      parse_run_state(fmt::format(R"({{"step": 3, "tokens": 48, "batches_passed": {}}})", bad), "state.json");
      ADD_FAILURE() << "accepted: " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), fmt::format("state.json: batches_passed = {} is no count", bad));
    }
  }
}

TEST(RunState, IsRefusedWhereItIsNone) {
  for (const char* bad : {"[]", "{\"step\": 3}", "{\"step\": 3, \"tokens\": \"many\"}", "{\"step\": 1.5, \"tokens\": 48}"}) {
    try {
      parse_run_state(bad, "here/state.json");
      ADD_FAILURE() << "accepted: " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::corrupt_file) << bad;
      EXPECT_STREQ(error.what(), "here/state.json: not the state of a run") << bad;
    }
  }
}

TEST(Ledgers, AddUpByPurposeAndKeepEveryPair) {
  const std::string merged = merge_ledgers(
      {R"({"by_purpose": {"gradient": {"bytes": 5, "messages": 1}, "control": {"bytes": 2, "messages": 2}}, "pairs": [{"from": 0}]})",
       R"({"by_purpose": {"gradient": {"bytes": 7, "messages": 3}}, "pairs": [{"from": 1}]})"});
  const std::vector<Traffic> traffic = traffic_of(merged);
  ASSERT_EQ(traffic.size(), 2u);
  EXPECT_EQ(traffic[0].purpose, "gradient");  // the most first
  EXPECT_EQ(traffic[0].bytes, 12);
  EXPECT_EQ(traffic[0].messages, 4);
  EXPECT_EQ(traffic[1].purpose, "control");
  EXPECT_EQ(traffic[1].bytes, 2);
  EXPECT_NE(merged.find("\"from\": 0"), std::string::npos) << merged;
  EXPECT_NE(merged.find("\"from\": 1"), std::string::npos) << merged;
}

TEST(Ledgers, MustBeJson) { EXPECT_THROW(merge_ledgers({"{"}), Error); }

}  // namespace
}  // namespace cairn::train
