// The link between remote islands: when an island counts as lost, and what a relay books.
#include <atomic>

#include <gtest/gtest.h>

#include "comm/bridge/bridge.h"
#include "comm/local/local.h"
#include "comm/net/key.h"
#include "comm/world.h"
#include "sync/islands/link.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

// Three bridges; the link between sites 0 and 2 can be cut.
struct ThreeSites {
  comm::BridgeOptions options(int site, uint16_t near = 0) {
    comm::BridgeOptions made{.site = site, .sites = 3, .key = key};
    if (near != 0) made.endpoints = {{"127.0.0.1", near}};
    made.silence_max = 200ms;
    made.lost_after = 400ms;
    made.is_cut = [this, site](int other) { return (cut && site + other == 2 && site != other) || (alone && (site == 0 || other == 0)); };
    return made;
  }
  comm::Key key = comm::fresh_key();
  std::atomic<bool> cut = false, alone = false;  // alone: site 0 reaches nobody
  comm::Bridge first{options(0)}, middle{options(1, first.port())}, last{options(2, first.port())};
};

// Waits until the condition holds, for 20 s at most.
template <typename So>
bool comes_true(IslandLink& link, So so) {
  const auto until = link.now() + 20s;
  while (!so() && link.now() < until) link.wait(link.now() + 5ms);
  return so();
}

TEST(RemoteLink, AnIslandIsLostAsLongAsItIsUnreachable) {
  comm::LocalNetwork(1).run([&](comm::World& world) {
    ThreeSites sites;
    const auto link = remote_link(sites.first, world);
    ASSERT_TRUE(comes_true(*link, [&] { return !link->lost(1); }));
    const uint64_t incarnation = link->incarnation(1);
    sites.alone = true;
    ASSERT_TRUE(comes_true(*link, [&] { return link->lost(1); }));
    sites.alone = false;
    ASSERT_TRUE(comes_true(*link, [&] { return !link->lost(1); }));
    EXPECT_EQ(link->incarnation(1), incarnation) << "it was away, but has not started again";
    const uint64_t own = link->incarnation(0);
    link->renew();
    EXPECT_GT(link->incarnation(0), own);
  });
}

TEST(RemoteLink, ARelayBooksWhatItForwards) {
  comm::LocalNetwork(1).run([&](comm::World& world) {
    ThreeSites sites;
    const auto link = remote_link(sites.middle, world);
    ASSERT_TRUE(comes_true(*link, [&] {
      return sites.first.reachable(2) && sites.last.reachable(0) && sites.middle.reachable(0) && sites.middle.reachable(2);
    }));
    sites.cut = true;
    const auto relayed = [&] { return world.ledger().between(0, -1 - 2, comm::Purpose::relay); };
    ASSERT_TRUE(comes_true(*link, [&] {
      (void)sites.first.send(2, sites.first.incarnation(2), std::vector<std::byte>(1000));
      while (link->next()) {
      }
      return relayed().messages > 3;
    }));
    EXPECT_EQ(relayed().bytes, 1000 * relayed().messages);
    EXPECT_EQ(world.ledger().total(comm::Purpose::relay), relayed()) << "nothing went to another island";
  });
}

}  // namespace
}  // namespace cairn::sync
