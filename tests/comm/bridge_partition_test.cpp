// Bridges whose links are cut, whose sites are away for long, renewed, or started twice with one number.
#include <array>
#include <atomic>
#include <memory>
#include <string>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/version.h"
#include "comm/bridge/bridge.h"
#include "comm/bridge_sites.h"
#include "comm/net/async_stream.h"
#include "comm/net/tls.h"

namespace cairn::comm {
namespace {

using namespace bridge_sites;
using namespace std::chrono_literals;
using testing::HasSubstr;

// Links between sites that a test cuts and heals.
class Links {
 public:
  BridgeOptions quick_site(int number, int sites, uint16_t near = 0) {
    BridgeOptions options = site(number, sites, near);
    options.silence_max = 200ms;
    options.lost_after = 400ms;
    options.is_cut = [this, number](int other) { return link(number, other).load(); };
    return options;
  }
  void cut(int a, int b, bool is = true) { link(a, b) = is; }

 private:
  std::atomic<bool>& link(int a, int b) { return cut_[static_cast<size_t>(std::min(a, b))][static_cast<size_t>(std::max(a, b))]; }
  std::array<std::array<std::atomic<bool>, 4>, 4> cut_{};
};

TEST(BridgePartition, ASiteThatWasCutOffForLongGoesOnWhereItWas) {
  Links links;
  Bridge a(links.quick_site(0, 2)), b(links.quick_site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, b));
  const uint64_t incarnation = a.incarnation(1);
  links.cut(0, 1);
  ASSERT_TRUE(a.send(1, incarnation, message(1, 3 << 20)));
  ASSERT_TRUE(soon(a, [&] { return !a.reachable(1) && !b.reachable(0); }));
  EXPECT_EQ(a.incarnation(1), incarnation);
  EXPECT_FALSE(a.send(1, incarnation, message(2)));
  links.cut(0, 1, false);
  ASSERT_TRUE(soon(a, [&] { return a.reachable(1) && b.reachable(0); })) << "nothing is given up";
  EXPECT_EQ(a.incarnation(1), incarnation);
  ASSERT_TRUE(a.send(1, incarnation, message(3)));
  EXPECT_EQ(number_of(receive(b)), 1);
  EXPECT_EQ(number_of(receive(b)), 3);
}

TEST(BridgePartition, AThirdSiteRelaysWhereALinkIsCut) {
  Links links;
  Bridge a(links.quick_site(0, 3)), b(links.quick_site(1, 3, a.port())), c(links.quick_site(2, 3, a.port()));
  ASSERT_TRUE(see_each_other(a, b) && see_each_other(a, c) && see_each_other(b, c));
  links.cut(0, 2);
  const uint64_t incarnation = c.incarnation(0);
  int64_t forwarded = 0, i = 0;
  const auto exchange = [&] {
    EXPECT_TRUE(a.send(2, a.incarnation(2), message(i, 100'000)) && c.send(0, incarnation, message(i))) << "it stays reachable";
    EXPECT_EQ(number_of(receive(c)), i);
    EXPECT_EQ(number_of(receive(a)), i++);
    for (const SiteChannels::Relayed& one : b.take_relayed()) forwarded += one.from == 0 && one.to == 2 ? one.bytes : 0;
    return testing::Test::HasFailure() || forwarded >= 1'000'000;
  };
  EXPECT_TRUE(soon(b, exchange));
  EXPECT_EQ(forwarded % 100'000, 0);
  EXPECT_FALSE(b.next().has_value()) << "the relay does not read what it forwards";
}

TEST(BridgePartition, SitesThatCannotConnectMeetThroughAThird) {
  Links links;
  links.cut(0, 2);
  Bridge a(links.quick_site(0, 3)), b(links.quick_site(1, 3, a.port())), c(links.quick_site(2, 3, b.port()));
  EXPECT_TRUE(see_each_other(a, c));
}

TEST(BridgePartition, ARenewedSiteIsANewIncarnationForAll) {
  Links links;
  Bridge a(links.quick_site(0, 3)), b(links.quick_site(1, 3, a.port())), c(links.quick_site(2, 3, a.port()));
  ASSERT_TRUE(see_each_other(a, b) && see_each_other(a, c) && see_each_other(b, c));
  const uint64_t before = b.incarnation(1), other = b.incarnation(0);
  ASSERT_TRUE(a.send(1, before, message(1)));
  ASSERT_TRUE(soon(b, [&] { return b.next().has_value(); }));
  b.renew();
  EXPECT_GT(b.incarnation(1), before);
  ASSERT_TRUE(see_each_other(a, b) && see_each_other(b, c));
  EXPECT_FALSE(a.send(1, before, message(2)));
  ASSERT_TRUE(a.send(1, a.incarnation(1), message(3)));
  EXPECT_EQ(number_of(receive(b)), 3);
  EXPECT_EQ(b.incarnation(0), other) << "the others are as they were";
  ASSERT_TRUE(b.send(2, b.incarnation(2), message(4)));
  EXPECT_EQ(number_of(receive(c)), 4);
  EXPECT_EQ(b.refusal(), "");
}

class BridgeRestart : public testing::TestWithParam<int> {};

// A site dies without a goodbye, and a copy of its folder gives the next start the same number. Site 1 calls site 0.
TEST_P(BridgeRestart, TwoStartsWithOneNumberAreToldApart) {
  const int returns = GetParam(), stays = 1 - returns;
  Links links;
  const NextIncarnation copied = [](uint64_t least) { return std::max<uint64_t>(5, least); };
  BridgeOptions options = links.quick_site(returns, 2), other_options = links.quick_site(stays, 2);
  options.incarnations = copied;
  std::unique_ptr<Bridge> one = std::make_unique<Bridge>(options);
  other_options.endpoints = {{"127.0.0.1", one->port()}};
  Bridge other(other_options);
  ASSERT_TRUE(see_each_other(other, *one));
  ASSERT_TRUE(one->send(stays, one->incarnation(stays), message(1)));
  EXPECT_EQ(number_of(receive(other)), 1);
  links.cut(0, 1);
  ASSERT_TRUE(soon(other, [&] { return !one->reachable(stays) && !other.reachable(returns); }));
  options.port = one->port();
  const base::RealClock clock;
  const auto begun = clock.now();
  one.reset();
  EXPECT_LT(base::seconds(clock.now() - begun), 5.0) << "it does not wait for a site that is unreachable";
  links.cut(0, 1, false);
  if (returns == 1) options.endpoints = {{"127.0.0.1", other.port()}};
  one = std::make_unique<Bridge>(options);
  ASSERT_TRUE(see_each_other(other, *one));
  EXPECT_GT(other.incarnation(returns), 5u);
  ASSERT_TRUE(one->send(stays, one->incarnation(stays), message(2)));
  EXPECT_EQ(number_of(receive(other)), 2) << "message 0 of a new pair";
}

INSTANTIATE_TEST_SUITE_P(Both, BridgeRestart, testing::Values(0, 1),
                         [](const auto& one) { return one.param == 1 ? "OfTheCaller" : "OfTheCalled"; });

// A caller that has the key, says that it is site 1, and leaves: `stage` says when, odd ones without an end of stream.
asio::awaitable<void> call_and_leave(asio::io_context& io, const Tls& tls, uint16_t port, int stage) {
  AsyncStream stream(io);
  co_await stream.connect("127.0.0.1", port);
  if (stage % 2 == 1) stream.socket().set_option(asio::socket_base::linger(true, 0));
  co_await stream.begin(&tls, Tls::Side::client);
  const base::Json introduction{{"version", base::version()},
                                {"config_fingerprint", ""},
                                {"site", 1},
                                {"sites", 2},
                                {"incarnation", 3 + stage / 6},
                                {"process", "leaves"},
                                {"host", "127.0.0.1"},
                                {"port", 9},
                                {"visit", stage % 3 == 2},
                                {"least_incarnation", 0},
                                {"addresses", base::Json::array()}};
  co_await stream.write_text(base::compact(introduction));
  if (stage % 3 == 1) (void)co_await stream.read_text(1 << 20);
  stream.close();
}

// The site answers callers that are gone by then, and makes connections of dead streams.
TEST(BridgePartition, CallersThatLeaveDuringTheIntroductionKeepNobodyOut) {
  Links links;
  Bridge a(links.quick_site(0, 2));
  const Tls tls(derive(kKey, "bridge"));
  asio::io_context io;
  for (int stage = 0; stage < 30; ++stage) asio::co_spawn(io, call_and_leave(io, tls, a.port(), stage), [](const std::exception_ptr&) {});
  io.run();
  ASSERT_TRUE(soon(a, [&] { return a.incarnation(1) >= 3; })) << "some of them were welcomed";
  Bridge b(links.quick_site(1, 2, a.port()));
  ASSERT_TRUE(see_each_other(a, b));
  ASSERT_TRUE(a.send(1, a.incarnation(1), message(8)));
  EXPECT_EQ(number_of(receive(b)), 8);
  EXPECT_EQ(b.refusal(), "");
}

TEST(IncarnationFile, GivesHigherNumbersAcrossStarts) {
  const base::TemporaryFolder folder;
  const auto path = folder.path() / "incarnation";
  EXPECT_EQ(IncarnationFile(path)(1), 1u);
  EXPECT_EQ(IncarnationFile(path)(1), 2u);
  EXPECT_EQ(IncarnationFile(path)(40), 40u);
  EXPECT_EQ(IncarnationFile(path)(7), 41u);
  Links links;
  BridgeOptions options = links.quick_site(0, 2);
  options.incarnations = IncarnationFile(path);
  Bridge bridge(options);
  EXPECT_EQ(bridge.incarnation(0), 42u);
  bridge.renew();
  EXPECT_EQ(bridge.incarnation(0), 43u);
  EXPECT_EQ(base::read_file(path, 64), "43\n") << "on disk before it is used";
}

TEST(IncarnationFile, SaysWhatToDoWithAFileOfAnotherKind) {
  const base::TemporaryFolder folder;
  const auto path = folder.path() / "incarnation";
  base::write_atomically(path, "12 monkeys\n");
  try {
    IncarnationFile{path}(1);
    FAIL() << "it is no number";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("it does not hold the number of this island's last start. Remove it"));
  }
}

}  // namespace
}  // namespace cairn::comm
