#include "comm/collectives/node_exchange.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::comm {
namespace {

using std::chrono::milliseconds;

CountMatrix even_counts_of(int ranks, int64_t rows) {
  return {ranks, std::vector<int64_t>(static_cast<size_t>(ranks) * static_cast<size_t>(ranks), rows)};
}

CountMatrix random_counts(int ranks, uint64_t seed) {
  CountMatrix matrix = even_counts_of(ranks, 0);
  const base::Random random(seed);
  for (size_t i = 0; i < matrix.counts.size(); ++i) {
    if (random.for_name("zero").below(i, 3) > 0) matrix.counts[i] = static_cast<int64_t>(random.for_name("count").below(i, 17));
  }
  return matrix;
}

// Carries labelled rows (from, to, number) through both phases by the plans alone.
TEST(NodeExchange, BringsEveryRowToItsRankInTheOrderOfTheSenders) {
  struct Row {
    int from, to;
    int64_t number;
    bool operator==(const Row&) const = default;
  };
  const auto pick = [](const std::vector<Row>& rows, const std::vector<RowRange>& ranges) {
    std::vector<Row> picked;
    for (const RowRange& range : ranges) picked.insert(picked.end(), rows.begin() + range.first, rows.begin() + range.first + range.rows);
    return picked;
  };
  for (const auto& [nodes, locals] : {std::pair{2, 2}, {2, 4}, {4, 2}, {3, 5}}) {
    const int n = nodes * locals;
    const CountMatrix counts = random_counts(n, static_cast<uint64_t>(n));
    std::vector<NodeExchange> plans;
    std::vector<std::vector<Row>> input(static_cast<size_t>(n)), expected(static_cast<size_t>(n));
    for (int from = 0; from < n; ++from) {
      plans.push_back(plan_node_exchange(counts, from, locals));
      for (int to = 0; to < n; ++to)
        for (int64_t k = 0; k < counts.at(from, to); ++k) {
          input[static_cast<size_t>(from)].push_back({from, to, k});
          expected[static_cast<size_t>(to)].push_back({from, to, k});
        }
    }
    const auto exchange = [&](const std::vector<std::vector<Row>>& packed, std::vector<int> NodeExchange::*members,
                              std::vector<int64_t> NodeExchange::*sent, std::vector<int64_t> NodeExchange::*received) {
      std::vector<std::vector<Row>> brought(static_cast<size_t>(n));
      for (int to = 0; to < n; ++to) {
        const NodeExchange& plan = plans[static_cast<size_t>(to)];
        for (size_t i = 0; i < (plan.*members).size(); ++i) {
          const int from = (plan.*members)[i];
          const NodeExchange& theirs = plans[static_cast<size_t>(from)];
          const auto place = std::find((theirs.*members).begin(), (theirs.*members).end(), to) - (theirs.*members).begin();
          const std::vector<int64_t>& counts_sent = theirs.*sent;
          const int64_t first = std::accumulate(counts_sent.begin(), counts_sent.begin() + place, int64_t{0});
          EXPECT_EQ(counts_sent[static_cast<size_t>(place)], (plan.*received)[i]);
          const auto begin = packed[static_cast<size_t>(from)].begin() + first;
          brought[static_cast<size_t>(to)].insert(brought[static_cast<size_t>(to)].end(), begin, begin + (plan.*received)[i]);
        }
      }
      return brought;
    };
    std::vector<std::vector<Row>> packed;
    for (int r = 0; r < n; ++r) packed.push_back(pick(input[static_cast<size_t>(r)], plans[static_cast<size_t>(r)].pack_first));
    std::vector<std::vector<Row>> rows = exchange(packed, &NodeExchange::node, &NodeExchange::first_sent, &NodeExchange::first_received);
    for (int r = 0; r < n; ++r)
      packed[static_cast<size_t>(r)] = pick(rows[static_cast<size_t>(r)], plans[static_cast<size_t>(r)].pack_second);
    rows = exchange(packed, &NodeExchange::rail, &NodeExchange::second_sent, &NodeExchange::second_received);
    EXPECT_TRUE(rows == expected) << nodes << " nodes of " << locals;
  }
}

TEST(NodeExchange, NeedsAtLeastTwoWholeNodes) {
  EXPECT_TRUE(has_whole_nodes(8, 4));
  EXPECT_TRUE(has_whole_nodes(6, 2));
  for (const auto& [ranks, node_ranks] : {std::pair{8, 3}, {4, 4}, {4, 8}, {4, 1}, {4, 0}})
    EXPECT_FALSE(has_whole_nodes(ranks, node_ranks));
}

const LinkFacts kInside{.latency = std::chrono::microseconds(20), .bytes_per_s = 10e9, .shared_card = true};
const LinkFacts kRail{.latency = milliseconds(5), .bytes_per_s = 20e6, .shared_card = true};
const LinkFacts kSpine{.latency = milliseconds(5), .bytes_per_s = 5e6, .shared_card = true};

double milliseconds_of(AllToAllPath path, const CountMatrix& counts, int64_t row_bytes, int node_ranks, const NodeLinks& links) {
  return std::chrono::duration<double, std::milli>(cost(path, counts, row_bytes, node_ranks, links)).count();
}

TEST(NodeExchange, TheCostIsThatOfTheSlowestRank) {
  // 2 nodes of 2; only rank 0 sends: 1 MB to each other rank. Inside: 0.1 ms at 10 GB/s; between nodes 50 ms each at 20 MB/s.
  CountMatrix counts{4, std::vector<int64_t>(16, 0)};
  counts.counts[1] = counts.counts[2] = counts.counts[3] = 1000;
  const NodeLinks shared{kInside, kRail, kRail};
  // Its card sends 0.1 + 50 + 50, the last message takes 5 ms more, and the card's rank handles three messages of 2 us.
  EXPECT_NEAR(milliseconds_of(AllToAllPath::flat, counts, 1000, 2, shared), 0.1 + 100 + 5 + 0.002, 1e-3);
  // Phase 1: 2 MB to rank 1, 0.2 + 0.02 ms. Rank 1 then sends 1 MB to rank 3; rank 0 meanwhile 1 MB to rank 2.
  EXPECT_NEAR(milliseconds_of(AllToAllPath::by_node, counts, 1000, 2, shared), 0.2 + 0.02 + 50 + 5, 0.01);
  NodeLinks apart = shared;  // each pair has a link of its own
  apart.inside.shared_card = apart.rail.shared_card = apart.across.shared_card = false;
  EXPECT_NEAR(milliseconds_of(AllToAllPath::flat, counts, 1000, 2, apart), 50 + 5, 0.01);
}

TEST(NodeExchange, RanksThatReachOneReceiverAtOnceWait) {
  // 2 nodes of 2, ranks 0 and 1 each send 1 MB to ranks 2 and 3, in this order: the second message for 3 has left at 100 ms, but the first
  // one keeps the card of rank 3 from 55 to 105 and the other until 155. By node: 100 ms on each rail.
  CountMatrix counts{4, {0, 0, 1000, 1000, 0, 0, 1000, 1000, 0, 0, 0, 0, 0, 0, 0, 0}};
  const NodeLinks shared{kInside, kRail, kRail};
  EXPECT_NEAR(milliseconds_of(AllToAllPath::flat, counts, 1000, 2, shared), 155, 0.1);
  EXPECT_NEAR(milliseconds_of(AllToAllPath::by_node, counts, 1000, 2, shared), 105 + 0.1, 0.1);
}

TEST(NodeExchange, ChoosesTheWayThatTheLinksMakeFaster) {
  const CountMatrix counts = even_counts_of(8, 64);
  EXPECT_EQ(choose_all_to_all(counts, 4096, 4, {kInside, kRail, kSpine}), AllToAllPath::by_node);  // off the slow spine
  EXPECT_EQ(choose_all_to_all(counts, 4096, 4, {kInside, kInside, kInside}), AllToAllPath::flat);  // all rows move once
  LinkFacts apart = kRail;
  apart.shared_card = false;  // each pair has 20 MB/s to itself: the direct way uses them all
  EXPECT_EQ(choose_all_to_all(counts, 4096, 4, {kInside, apart, apart}), AllToAllPath::flat);
  const LinkFacts costly{.latency = milliseconds(5), .overhead = milliseconds(1), .bytes_per_s = 20e6, .shared_card = true};
  EXPECT_EQ(choose_all_to_all(even_counts_of(8, 1), 64, 4, {kInside, costly, costly}), AllToAllPath::by_node);  // fewer messages
  EXPECT_EQ(choose_all_to_all(counts, 4096, 3, {kInside, kRail, kSpine}), AllToAllPath::flat);                  // no whole nodes
}

}  // namespace
}  // namespace cairn::comm
