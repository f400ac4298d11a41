// Each rule about banned calls catches a bad example and lets a good one pass.
#include "tidy/call_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::tidy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Environment, IsReadInCliAlone) {
  const std::string text = "\nauto home = std::getenv(\"HOME\");\n";
  EXPECT_THAT(reads_the_environment_in_cli_alone({"src/base/files.cpp", text}),
              ElementsAre("src/base/files.cpp:2: getenv: only cli reads the environment; hand the value down"));
  EXPECT_THAT(reads_the_environment_in_cli_alone({"src/cli/main.cpp", text}), IsEmpty());
}

TEST(Printing, GoesThroughTheLog) {
  EXPECT_THAT(
      prints_through_the_log({"src/comm/collectives/ring.cpp", "printf(\"x\"); std::cout << 1; puts(\"y\"); std::fprintf(f, \"z\");"}),
      SizeIs(4));
  EXPECT_THAT(prints_through_the_log({"src/comm/collectives/ring.cpp", "snprintf(a, 3, \"printf\"); // std::cout\n"}), IsEmpty());
  EXPECT_THAT(prints_through_the_log({"src/base/terminal.cpp", "std::cout << 1;"}), IsEmpty());
  EXPECT_THAT(prints_through_the_log({"src/cli/main.cpp", "std::puts(\"y\");"}), IsEmpty());
}

TEST(RandomNumbers, ComeFromBase) {
  EXPECT_THAT(draws_numbers_from_base_random({"src/data/x.cpp", "std::mt19937 g; srand(1); int a = rand(); std::random_device d;"}),
              SizeIs(4));
  EXPECT_THAT(draws_numbers_from_base_random({"src/model/x.cpp", "at::rand({3});"}), ElementsAre(HasSubstr("counter-based")));
  EXPECT_THAT(draws_numbers_from_base_random({"tests/data/x_test.cpp", "std::random_device d;"}), ElementsAre(HasSubstr("not repeatable")));
  EXPECT_THAT(draws_numbers_from_base_random({"tests/data/x_test.cpp", "std::mt19937 fixed(7);"}), IsEmpty());
  EXPECT_THAT(draws_numbers_from_base_random({"src/data/x.cpp", "#include <openssl/rand.h>\noperand(1); rand_k(2);"}), IsEmpty());
}

TEST(Time, IsAskedOfTheClock) {
  const std::string text = "auto now = std::chrono::system_clock::now();";
  EXPECT_THAT(asks_the_world_for_the_time({"src/train/loop.cpp", text}), ElementsAre(HasSubstr("take a base::Clock&")));
  EXPECT_THAT(asks_the_world_for_the_time({"src/base/clock.cpp", text}), IsEmpty());
  EXPECT_THAT(asks_the_world_for_the_time({"src/train/loop.cpp", "std::chrono::steady_clock::now();"}), IsEmpty());
}

TEST(Sleeping, IsRefusedInCodeAndTests) {
  EXPECT_THAT(never_sleeps({"tests/comm/x_test.cpp", "std::this_thread::sleep_for(1ms);"}), SizeIs(1));
  EXPECT_THAT(never_sleeps({"src/comm/x.cpp", "usleep(3); ::sleep(1); sleep(2);"}), SizeIs(3));
  EXPECT_THAT(never_sleeps({"src/comm/x.cpp", "clock.sleep(deadline); bool sleep = true; // sleep_for"}), IsEmpty());
}

TEST(Blank, KeepsOffsetsAndSeesThroughLiterals) {
  const std::string text =
      "int a = 1'000; /* getenv */ char c = '\"'; auto s = \"// no\"; auto r = R\"x(\" getenv )x\"; call(); // end\nmore";
  const std::string code = blank(text, Keep::code_only);
  EXPECT_EQ(code.size(), text.size());
  EXPECT_THAT(find_word(code, "getenv"), IsEmpty());
  EXPECT_THAT(find_word(code, "call"), ElementsAre(text.find("call")));
  EXPECT_THAT(find_word(code, "more"), SizeIs(1));
  EXPECT_THAT(find_word(code, "end"), IsEmpty());
  EXPECT_THAT(blank(text, Keep::strings), HasSubstr("\"// no\""));
}

}  // namespace
}  // namespace cairn::tidy
