#include "cli/links.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::cli {
namespace {

TEST(Links, AreWrittenWithTheirUnits) {
  EXPECT_FALSE(links_of(""));
  const auto both = links_of("20ms,100Mbit");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->latency, std::chrono::milliseconds(20));
  EXPECT_DOUBLE_EQ(both->bytes_per_s, 12.5e6);
  EXPECT_EQ(both->share, comm::LinkModel::Share::pair);
  const auto card = links_of("1.5Gbit,50us,card");
  ASSERT_TRUE(card);
  EXPECT_EQ(card->latency, std::chrono::microseconds(50));
  EXPECT_DOUBLE_EQ(card->bytes_per_s, 187.5e6);
  EXPECT_EQ(card->share, comm::LinkModel::Share::card);
}

TEST(Links, AreRefusedWithTheWordThatIsNone) {
  for (const std::string text : {"20", "ms", "20ms,", "-1ms", "0Mbit", "100MB", "nanms", "1e300ms"}) {
    try {
      links_of(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_NE(std::string(error.what()).find("as 20ms,100Mbit"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cairn::cli
