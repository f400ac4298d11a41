// Groups of keepers on a network of the test's own: every message may be lost, delayed or followed by the end of its sender.
#include "elastic/redundancy.h"

#include <deque>

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::elastic {
namespace {

// A small generator, so that a failing seed can be repeated.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t below(uint64_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % bound;
  }

 private:
  uint64_t state_;
};

std::byte value_at(int node, uint64_t serial, int64_t at) {
  return static_cast<std::byte>(
      (static_cast<uint64_t>(node) * 131 + serial * 31 + static_cast<uint64_t>(at) * 7 + (static_cast<uint64_t>(at) >> 9)) & 0xff);
}

// n keepers, each with one rank. Messages wait in queues, one for each pair, until the test delivers them.
struct Group {
  int nodes;
  ParityKind kind;
  VaultSpec spec;
  std::vector<std::unique_ptr<Redundancy>> keepers;
  std::map<std::pair<int, int>, std::deque<Bytes>> queues;
  uint64_t epoch = 0;

  Group(int nodes_, ParityKind kind_, int64_t bytes, RedundancyFaults faults = {}) : nodes(nodes_), kind(kind_) {
    spec.id = "layout";
    spec.code = {kind, nodes, padded_bytes(kind, nodes, bytes)};
    for (int node = 0; node < nodes; ++node) {
      spec.regions.push_back({node, node, 0, spec.code.data_bytes});
      keepers.push_back(std::make_unique<Redundancy>(faults));
    }
    join();
    for (int node = 0; node < nodes; ++node) keepers[static_cast<size_t>(node)]->lay_out(spec_of(node));
  }
  VaultSpec spec_of(int node) const {
    VaultSpec own = spec;
    own.index = node;
    return own;
  }
  void join() {
    queues.clear();
    ++epoch;
    for (int node = 0; node < nodes; ++node)
      if (keepers[static_cast<size_t>(node)])
        keepers[static_cast<size_t>(node)]->join(epoch, node, nodes,
                                                 [this, node](int to, Bytes message) {
                                                   queues[{node, to}].push_back(std::move(message));
                                                 },
                                                 {});
  }
  // A new process in the place of one that is gone, with empty memory.
  void replace(int node) { keepers[static_cast<size_t>(node)] = std::make_unique<Redundancy>(); }

  void write(int node, uint64_t serial) {
    Redundancy& keeper = *keepers[static_cast<size_t>(node)];
    const int buffer = keeper.begin(spec.id, serial, static_cast<int64_t>(serial));
    auto bytes = keeper.find(spec.id)->data[static_cast<size_t>(buffer)].all();
    for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = value_at(node, serial, static_cast<int64_t>(at));
    keeper.filled(spec.id, serial, node);
  }
  bool deliver_one(Draws& draws) {
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [pair, queue] : queues)
      if (!queue.empty()) pairs.push_back(pair);
    if (pairs.empty()) return false;
    const auto pair = pairs[draws.below(pairs.size())];
    const Bytes message = std::move(queues[pair].front());
    queues[pair].pop_front();
    if (auto& to = keepers[static_cast<size_t>(pair.second)]) to->arrived(pair.first, message);
    return true;
  }
  void deliver_all(uint64_t seed = 1) {
    Draws draws(seed);
    while (deliver_one(draws)) {
    }
  }
  bool has_whole(int node, uint64_t serial) const {
    return keepers[static_cast<size_t>(node)] && keepers[static_cast<size_t>(node)]->data_of(spec.id, node, serial);
  }
  bool has_right_bytes(const Segment* data, int node, uint64_t serial) const {
    if (!data) return false;
    for (int64_t at = 0; at < data->bytes(); ++at)
      if (data->all()[static_cast<size_t>(at)] != value_at(node, serial, at)) return false;
    return true;
  }
  // The newest version that can be restored, as ranks find it; 0: none.
  uint64_t restorable(uint64_t newest) const {
    for (uint64_t serial = newest; serial > 0; --serial) {
      int missing = 0;
      for (int node = 0; node < nodes; ++node) missing += has_whole(node, serial) ? 0 : 1;
      if (missing <= (spec.code.protects() ? 1 : 0)) return serial;
    }
    return 0;
  }
  RebuildOrder order(int lost, int target, uint64_t serial, uint64_t id) const {
    RebuildOrder order{};
    order.id = id;
    order.spec = spec_of(lost);
    order.serial = serial;
    order.step = static_cast<int64_t>(serial);
    order.target = target;
    for (int node = 0; node < nodes; ++node) order.sites.push_back(node == lost ? (target == lost ? lost : -1) : node);
    order.data = {{0, spec.code.data_bytes}};
    if (target == lost) order.parity = {{0, spec.code.parity_bytes()}};
    return order;
  }
  void order_all(const RebuildOrder& what) {
    for (auto& keeper : keepers)
      if (keeper) keeper->rebuild(what);
  }
};

TEST(Redundancy, CommitsOnAllNodesOnceAllHaveTheParity) {
  for (int nodes = 1; nodes <= 5; ++nodes)
    for (const ParityKind kind : {ParityKind::none, ParityKind::exclusive_or, ParityKind::mirror}) {
      Group group(nodes, kind, 10'000);
      for (uint64_t serial = 1; serial <= 3; ++serial) {
        for (int node = 0; node < nodes; ++node) group.write(node, serial);
        group.deliver_all(serial);
        for (int node = 0; node < nodes; ++node) {
          EXPECT_FALSE(group.keepers[static_cast<size_t>(node)]->in_flight(group.spec.id)) << nodes << " nodes, " << word_of(kind);
          EXPECT_TRUE(group.has_right_bytes(group.keepers[static_cast<size_t>(node)]->data_of(group.spec.id, node, serial), node, serial));
        }
      }
    }
}

TEST(Redundancy, RebuildsEachLostNodeOnAReplacementWithItsDataAndItsParity) {
  for (int nodes = 2; nodes <= 6; ++nodes)
    for (int lost = 0; lost < nodes; ++lost) {
      Group group(nodes, ParityKind::exclusive_or, 9'999);
      for (int node = 0; node < nodes; ++node) group.write(node, 1);
      group.deliver_all();
      const Vault* before = group.keepers[static_cast<size_t>(lost)]->find(group.spec.id);
      const auto old = before->parity[static_cast<size_t>(before->find(1))].all();
      const Bytes parity(old.begin(), old.end());
      group.replace(lost);
      group.join();
      group.order_all(group.order(lost, lost, 1, 77));
      group.deliver_all();
      Redundancy& keeper = *group.keepers[static_cast<size_t>(lost)];
      ASSERT_TRUE(keeper.progress(77).done) << nodes << " nodes, lost " << lost << ": " << keeper.progress(77).failure;
      EXPECT_TRUE(group.has_right_bytes(keeper.data_of(group.spec.id, lost, 1), lost, 1));
      const Vault* after = keeper.find(group.spec.id);
      const auto rebuilt = after->parity[static_cast<size_t>(after->find(1))].all();
      EXPECT_EQ(Bytes(rebuilt.begin(), rebuilt.end()), parity);
      // What arrives at the replacement is what it lost, once.
      EXPECT_EQ(keeper.progress(77).received, group.spec.code.data_bytes + group.spec.code.parity_bytes());
    }
}

TEST(Redundancy, RebuildsOnASurvivorWhereThereIsNoReplacement) {
  for (const ParityKind kind : {ParityKind::exclusive_or, ParityKind::mirror})
    for (int lost = 0; lost < 4; ++lost) {
      Group group(4, kind, 5'000);
      for (int node = 0; node < 4; ++node) group.write(node, 1);
      group.deliver_all();
      group.keepers[static_cast<size_t>(lost)] = nullptr;
      group.join();
      const int target = (lost + 1) % 4;
      group.order_all(group.order(lost, target, 1, 5));
      group.deliver_all();
      EXPECT_TRUE(group.has_right_bytes(group.keepers[static_cast<size_t>(target)]->data_of(group.spec.id, lost, 1), lost, 1));
    }
}

TEST(Redundancy, ARebuildThatWasInterruptedIsBegunAgain) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Group group(4, ParityKind::exclusive_or, 5'000);
    for (int node = 0; node < 4; ++node) group.write(node, 1);
    group.deliver_all();
    group.replace(2);
    Draws draws(seed);
    group.join();
    group.order_all(group.order(2, 2, 1, 1));
    for (uint64_t left = draws.below(8); left > 0; --left) group.deliver_one(draws);
    group.join();  // the ranks have come again, with the first attempt half done
    group.order_all(group.order(2, 2, 1, 2));
    group.deliver_all(seed);
    ASSERT_TRUE(group.has_right_bytes(group.keepers[2]->data_of(group.spec.id, 2, 1), 2, 1)) << "seed " << seed;
  }
}

TEST(Redundancy, FindsAFlippedByteAndRepairsItFromParity) {
  Group group(4, ParityKind::exclusive_or, 3 * kBlockBytes + 1234);
  for (int node = 0; node < 4; ++node) group.write(node, 1);
  group.deliver_all();
  Vault* vault = group.keepers[1]->find(group.spec.id);
  const auto buffer = static_cast<size_t>(vault->find(1));
  EXPECT_TRUE(group.keepers[1]->verify(group.spec.id, 1).data.empty());
  vault->data[buffer].all()[kBlockBytes + 17] ^= std::byte{4};
  vault->parity[buffer].all()[3] ^= std::byte{1};
  const Redundancy::Damage damage = group.keepers[1]->verify(group.spec.id, 1);
  ASSERT_EQ(damage.data, (Ranges{{kBlockBytes, 2 * kBlockBytes}}));
  ASSERT_EQ(damage.parity.size(), 1u);
  group.join();
  RebuildOrder order = group.order(1, 1, 1, 9);
  order.in_place = true;
  order.data = damage.data;
  order.parity = damage.parity;
  group.order_all(order);
  group.deliver_all();
  EXPECT_TRUE(group.keepers[1]->progress(9).done) << group.keepers[1]->progress(9).failure;
  EXPECT_TRUE(group.has_right_bytes(group.keepers[1]->data_of(group.spec.id, 1, 1), 1, 1));
  EXPECT_TRUE(group.keepers[1]->verify(group.spec.id, 1).parity.empty());
}

TEST(Redundancy, SaysThatWhatItRebuiltIsWrongWhereASurvivorIsDamagedToo) {
  Group group(3, ParityKind::exclusive_or, 5'000);
  for (int node = 0; node < 3; ++node) group.write(node, 1);
  group.deliver_all();
  Vault* vault = group.keepers[1]->find(group.spec.id);
  vault->data[static_cast<size_t>(vault->find(1))].all()[3] ^= std::byte{4};  // its block for node 0
  group.replace(2);
  group.join();
  group.order_all(group.order(2, 2, 1, 9));
  group.deliver_all();
  EXPECT_FALSE(group.keepers[2]->progress(9).done);
  EXPECT_NE(group.keepers[2]->progress(9).failure.find("another checksum"), std::string::npos);
}

// A life of a group: snapshots, with messages that are lost and at the end a node that is. Returns whether what was restorable had the
// right bytes, and a version was restorable at all once one had been committed.
std::string live(uint64_t seed, RedundancyFaults faults) {
  Draws draws(seed);
  const int nodes = 2 + static_cast<int>(draws.below(4));
  Group group(nodes, ParityKind::exclusive_or, 700 + static_cast<int64_t>(draws.below(600)), faults);
  uint64_t serial = 0, committed = 0;
  const bool loses = draws.below(2) == 0;
  for (uint64_t left = 1 + draws.below(6); left > 0; --left) {
    bool busy = false;
    for (auto& keeper : group.keepers) busy = busy || (!faults.overwrite_uncommitted && keeper->in_flight(group.spec.id));
    if (!busy) ++serial;
    for (int node = 0; !busy && node < nodes; ++node) {
      if (draws.below(6) == 0) {  // this rank dies while it writes
        const int buffer = group.keepers[static_cast<size_t>(node)]->begin(group.spec.id, serial, static_cast<int64_t>(serial));
        group.keepers[static_cast<size_t>(node)]->find(group.spec.id)->data[static_cast<size_t>(buffer)].all()[0] = std::byte{99};
        continue;
      }
      group.write(node, serial);
      for (uint64_t some = draws.below(4); some > 0; --some) group.deliver_one(draws);
    }
    for (uint64_t some = draws.below(60); some > 0; --some) {
      if (loses && draws.below(20) == 0)
        for (auto& [pair, queue] : group.queues)
          if (!queue.empty()) {
            queue.pop_front();
            break;
          }
      group.deliver_one(draws);
    }
    for (int node = 0; node < nodes; ++node)
      for (const Version& one : group.keepers[static_cast<size_t>(node)]->find(group.spec.id)->versions)
        for (int other = 0; one.state == Version::State::clean && one.serial == serial && other < nodes; ++other)
          if (!group.has_whole(other, serial))
            return "clean on node " + std::to_string(node) + " before node " + std::to_string(other) + " had it";
    bool all = true;
    for (int node = 0; node < nodes; ++node) {
      const Vault* vault = group.keepers[static_cast<size_t>(node)]->find(group.spec.id);
      const int buffer = vault->find(serial);
      all = all && buffer >= 0 && vault->versions[static_cast<size_t>(buffer)].state == Version::State::clean;
    }
    if (all) committed = serial;
  }
  const int lost = static_cast<int>(draws.below(static_cast<uint64_t>(nodes)));
  group.replace(lost);
  group.join();
  const uint64_t found = group.restorable(serial);
  if (found < committed) return "version " + std::to_string(committed) + " was clean everywhere and is gone";
  if (found == 0) return {};
  group.order_all(group.order(lost, lost, found, 1));
  group.deliver_all(seed);
  for (int node = 0; node < nodes; ++node)
    if (!group.has_right_bytes(group.keepers[static_cast<size_t>(node)]->data_of(group.spec.id, node, found), node, found))
      return "node " + std::to_string(node) + " has other bytes than version " + std::to_string(found) + " had";
  return {};
}

TEST(Redundancy, WhateverIsLostACleanVersionIsNeverLostNorMixed) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) ASSERT_EQ(live(seed, {}), "") << "seed " << seed;
}

TEST(Redundancy, TheSearchFindsPlantedMistakes) {
  const auto found = [](RedundancyFaults faults) {
    int lives = 0;
    for (uint64_t seed = 1; seed <= 1000; ++seed) {
      try {
        lives += live(seed, faults).empty() ? 0 : 1;
      } catch (const Error&) {  // a planted mistake may also end in a refusal
      }
    }
    return lives;
  };
  EXPECT_GT(found({.overwrite_uncommitted = true}), 0);
  EXPECT_GT(found({.commit_alone = true}), 0);
}

TEST(Redundancy, ATornVersionIsDroppedWhenItsRanksAreGone) {
  Group group(3, ParityKind::exclusive_or, 1'000);
  for (int node = 0; node < 3; ++node) group.write(node, 1);
  group.deliver_all();
  for (int node = 0; node < 2; ++node) group.write(node, 2);  // the rank of node 2 was killed
  group.deliver_all();
  group.join();
  EXPECT_EQ(group.restorable(2), 1u);
  for (auto& keeper : group.keepers) keeper->adopt(group.spec.id, 1);
  for (int node = 0; node < 3; ++node) group.write(node, 3);  // nothing is in its way
  group.deliver_all();
  EXPECT_EQ(group.restorable(3), 3u);
}

TEST(Redundancy, ALayoutIsKeptUntilTheNextOneHasACleanVersion) {
  Group group(3, ParityKind::exclusive_or, 1'000);
  for (int node = 0; node < 3; ++node) group.write(node, 1);
  group.deliver_all();
  Group next(2, ParityKind::exclusive_or, 2'000);  // for its layout
  VaultSpec spec = next.spec;
  spec.id = "other";
  spec.index = 0;
  Redundancy& keeper = *group.keepers[0];
  keeper.lay_out(spec);
  EXPECT_EQ(keeper.vaults().size(), 2u);
  EXPECT_NE(keeper.data_of("layout", 0, 1), nullptr);
}

TEST(Redundancy, RefusesASnapshotWhileTheOneBeforeIsUnfinished) {
  Group group(2, ParityKind::exclusive_or, 1'000);
  for (int node = 0; node < 2; ++node) group.write(node, 1);
  try {
    group.keepers[0]->begin(group.spec.id, 2, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "keeper: the snapshot before this one is not finished");
  }
}

TEST(Redundancy, IgnoresMessagesOfAnEarlierGroupAndNonsense) {
  Group group(2, ParityKind::exclusive_or, 1'000);
  group.write(0, 1);
  const auto stale = group.queues;
  group.join();
  for (const auto& [pair, queue] : stale)
    for (const Bytes& message : queue) group.keepers[static_cast<size_t>(pair.second)]->arrived(pair.first, message);
  EXPECT_FALSE(group.keepers[1]->in_flight(group.spec.id));
  group.keepers[1]->arrived(0, Bytes(3));
  group.keepers[1]->arrived(0, Bytes(500, std::byte{0x5a}));
  EXPECT_FALSE(group.keepers[1]->in_flight(group.spec.id));
}

}  // namespace
}  // namespace cairn::elastic
