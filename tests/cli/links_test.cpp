#include "cli/launch/links.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/stop.h"
#include "base/terminal.h"
#include "cli/launch/rank_setups.h"
#include "comm/net/key.h"
#include "harness/scratch_folder.h"

namespace cairn::cli {
namespace {

TEST(Links, AreWrittenWithTheirUnits) {
  EXPECT_FALSE(parse_links(""));
  const auto both = parse_links("20ms,100Mbit");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->latency, std::chrono::milliseconds(20));
  EXPECT_DOUBLE_EQ(both->bytes_per_s, 12.5e6);
  EXPECT_EQ(both->contention, comm::LinkModel::Contention::per_pair);
  const auto card = parse_links("1.5Gbit,50us,card");
  ASSERT_TRUE(card);
  EXPECT_EQ(card->latency, std::chrono::microseconds(50));
  EXPECT_DOUBLE_EQ(card->bytes_per_s, 187.5e6);
  EXPECT_EQ(card->contention, comm::LinkModel::Contention::per_nic);
}

TEST(Links, MayBeParallelPlanes) {
  const auto two = parse_links("1ms,card,plane=100Mbit,plane=30Mbit");
  ASSERT_TRUE(two);
  ASSERT_EQ(two->planes.size(), 2u);
  EXPECT_DOUBLE_EQ(two->planes[0], 12.5e6);
  EXPECT_DOUBLE_EQ(two->planes[1], 3.75e6);
  for (const char* wrong : {"plane=", "plane=3ms", "plane=0Mbit", "plane=x"}) EXPECT_THROW(parse_links(wrong), Error) << wrong;
}

// What --interfaces and --channels have to say where they leave nothing to plan.
TEST(Paths, WithoutAChoiceAreRefused) {
  const auto refusal = [](const LaunchArguments& a) {
    const base::Stop stop;
    base::Terminal terminal;
    try {
      for (const comm::NetSetup& setup : meet_and_set_up(a, node_place(a), "", stop, terminal))
        for (const int fd : setup.fds())
          if (fd >= 0) ::close(fd);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const harness::ScratchFolder folder;
  comm::write_key(folder.path() / "key", comm::fresh_key());
  LaunchArguments alone;
  EXPECT_EQ(refusal(alone), "accepted");
  alone.channels = 2;
  EXPECT_THAT(refusal(alone), testing::HasSubstr("--channels 2: nothing to plan on one machine"));
  alone.links = "1ms,plane=10Mbit,plane=10Mbit";
  EXPECT_EQ(refusal(alone), "accepted");
  alone.interfaces = "127.0.0.1";
  EXPECT_THAT(refusal(alone), testing::HasSubstr("--interfaces 127.0.0.1: nothing to plan on one machine"));
  LaunchArguments several;
  several.nnodes = 2;
  several.node_rank = 0;
  several.rendezvous = "127.0.0.1:29400";
  several.key = (folder.path() / "key").string();
  several.interfaces = "127.0.0.1";
  EXPECT_THAT(refusal(several), testing::HasSubstr("nothing to plan with one interface and one channel. Name two interfaces"));
  several.interfaces = "127.0.0.2,127.0.0.3";
  EXPECT_THAT(refusal(several), testing::HasSubstr("127.0.0.1, which leads to 127.0.0.1, is not among them. Add it."));
}

TEST(Links, AreSlowBetweenIslandsOnly) {
  const comm::LinkModel links = island_links(*parse_links("20ms,100Mbit"), 4, 2);
  EXPECT_EQ(links.latency_matrix[0][1], std::chrono::nanoseconds(0));
  EXPECT_EQ(links.latency_matrix[1][2], std::chrono::milliseconds(20));
  EXPECT_DOUBLE_EQ(links.bytes_per_s_matrix[3][0], 12.5e6);
  EXPECT_DOUBLE_EQ(links.bytes_per_s_matrix[3][2], 1e12);
  EXPECT_EQ(island_links(*parse_links("20ms"), 4, 4), *parse_links("20ms"));
}

TEST(Links, MayBeReadFromAMatrixAndVary) {
  const harness::ScratchFolder folder;
  const auto file = folder.file("ms.txt", "0,10.5,20\n11 0 21\n12,22,0\n");
  const auto links = parse_links("1Gbit,sigma=0.5,matrix=" + file.string());
  EXPECT_DOUBLE_EQ(links->latency_sigma, 0.5);
  const comm::LinkModel two = island_links(*links, 4, 2);  // the first two rows
  EXPECT_EQ(two.latency_matrix[0][2], std::chrono::microseconds(10500));
  EXPECT_EQ(two.latency_matrix[3][1], std::chrono::milliseconds(11));
  EXPECT_THROW(island_links(*links, 8, 4), Error);
  EXPECT_THROW(parse_links("matrix=" + folder.file("bad.txt", "0,1\n2\n").string()), Error);
  EXPECT_THROW(parse_links("matrix=" + folder.file("worse.txt", "0,x\n2,0\n").string()), Error);
}

TEST(Links, AreRefusedWithTheWordThatIsNone) {
  for (const std::string text : {"20", "ms", "20ms,", "-1ms", "0Mbit", "100MB", "nanms", "1e300ms", "sigma=", "sigma=x"}) {
    try {
      parse_links(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_NE(std::string(error.what()).find("as 20ms,100Mbit"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cairn::cli
