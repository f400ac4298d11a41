#include "mesh/row_exchange.h"

#include <mutex>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

using std::chrono::milliseconds;

comm::CountMatrix random_counts(int ranks, uint64_t seed) {
  comm::CountMatrix matrix{ranks, std::vector<int64_t>(static_cast<size_t>(ranks) * static_cast<size_t>(ranks))};
  const base::Random random(seed);
  for (size_t i = 0; i < matrix.counts.size(); ++i) {
    if (random.for_name("zero").below(i, 4) > 0) matrix.counts[i] = static_cast<int64_t>(random.for_name("count").below(i, 13));
  }
  return matrix;
}

// The rows from one rank to another, each a function of (from, to, number).
at::Tensor rows_between(int from, int to, int64_t count, int64_t width) {
  const at::Tensor rows = at::empty({count, width}, at::kFloat);
  const base::Random random = base::Random(7).for_index(static_cast<uint64_t>(from)).for_index(static_cast<uint64_t>(to));
  random.fill_normal({rows.data_ptr<float>(), static_cast<size_t>(rows.numel())});
  return rows;
}

struct Both {
  at::Tensor sent, expected;
};
Both rows_of(const comm::CountMatrix& counts, int me, int64_t width) {
  std::vector<at::Tensor> sent, expected;
  for (int peer = 0; peer < counts.ranks; ++peer) {
    sent.push_back(rows_between(me, peer, counts.at(me, peer), width));
    expected.push_back(rows_between(peer, me, counts.at(peer, me), width));
  }
  return {at::cat(sent), at::cat(expected)};
}

TEST(RowExchange, ByNodeIsBitwiseTheFlatOne) {
  for (const auto& [locals, nodes] : {std::pair{2, 2}, {4, 2}, {2, 4}}) {
    for (const harness::On on : {harness::On::local, harness::On::net}) {
      harness::on_ranks(locals * nodes, {.on = on}, [&, locals = locals](comm::World& world) {
        const RowExchange flat(world.everyone(), locals, RowPath::flat), by_node(world.everyone(), locals, RowPath::by_node);
        for (uint64_t seed = 0; seed < 6; ++seed) {
          const comm::CountMatrix counts = random_counts(world.size(), seed);
          const auto [sent, expected] = rows_of(counts, world.rank(), 5);
          const at::Tensor one = at::full_like(expected, 99), two = at::full_like(expected, 98);
          // Both in flight at once.
          const comm::Work first = flat.start(one, sent, counts, {comm::Purpose::activation, "flat"});
          const comm::Work second = by_node.start(two, sent, counts, {comm::Purpose::activation, "by node"});
          first.wait();
          second.wait();
          EXPECT_TRUE(at::equal(one, expected)) << seed;
          EXPECT_TRUE(at::equal(two, expected)) << seed;
        }
      });
    }
  }
}

TEST(RowExchange, SendsOneMessagePerRailBetweenNodes) {
  // 2 nodes of 4, one row of 4 floats for each pair: 4 messages each way between the nodes, and the bytes of the direct exchange.
  const comm::CountMatrix counts{8, std::vector<int64_t>(64, 1)};
  for (const RowPath path : {RowPath::flat, RowPath::by_node}) {
    const harness::Run run = harness::on_ranks(8, [&](comm::World& world) {
      const auto [sent, expected] = rows_of(counts, world.rank(), 4);
      const at::Tensor out = at::empty_like(expected);
      RowExchange(world.everyone(), 4, path).start(out, sent, counts, {comm::Purpose::activation, "rows"}).wait();
    });
    int64_t bytes = 0, messages = 0;
    for (int from = 0; from < 4; ++from)
      for (int to = 4; to < 8; ++to) {
        const comm::Ledger::Total sent = run.ledger.between(from, to, comm::Purpose::activation);
        bytes += sent.bytes;
        messages += sent.messages;
      }
    EXPECT_EQ(bytes, 16 * 16);
    EXPECT_EQ(messages, path == RowPath::flat ? 16 : 4);
  }
}

TEST(RowExchange, UnequalNodesTravelFlatAndSaySoOnce) {
  const harness::Run run = harness::on_ranks(6, [](comm::World& world) {
    const comm::CountMatrix counts = random_counts(6, 3);
    const auto [sent, expected] = rows_of(counts, world.rank(), 3);
    const RowExchange exchange(world.everyone(), 4, RowPath::by_node);
    for (int again = 0; again < 2; ++again) {
      const at::Tensor out = at::empty_like(expected);
      exchange.start(out, sent, counts, {comm::Purpose::activation, "rows"}).wait();
      EXPECT_TRUE(at::equal(out, expected));
    }
  });
  ASSERT_EQ(run.log.at(0).size(), 1u);
  EXPECT_THAT(run.log.at(0).front(), ::testing::HasSubstr("6 ranks are no whole nodes of 4: rows travel from rank to rank (flat)"));
}

TEST(RowExchange, RefusesRowsThatAreNotThoseOfTheMatrix) {
  const harness::Run run = harness::on_ranks(2, {.expect_errors = true}, [](comm::World& world) {
    const comm::CountMatrix counts{2, {1, 1, 1, 1}};
    const at::Tensor in = at::zeros({3, 2}), out = at::zeros({2, 2});
    RowExchange(world.everyone(), 1).start(out, in, counts, {comm::Purpose::activation, "rows"}).wait();
  });
  EXPECT_THAT(run.error_on(0).what(),
              ::testing::HasSubstr("hands in 3 rows and room for 2; by the count matrix of 2 ranks it sends 2 and gets 2"));
}

// Nodes of `locals` ranks; 5 ms and 20 MB/s between ranks of equal local rank, 5 ms and `spine` bytes per second between the others of two
// nodes; one card per rank.
comm::LinkModel rails(int ranks, int locals, double spine) {
  comm::LinkModel link{.jitter = 0, .contention = comm::LinkModel::Contention::per_nic};
  for (int from = 0; from < ranks; ++from) {
    auto& rates = link.bytes_per_s_matrix.emplace_back();
    auto& latencies = link.latency_matrix.emplace_back();
    for (int to = 0; to < ranks; ++to) {
      const bool near = from / locals == to / locals;
      rates.push_back(near ? 1e9 : from % locals == to % locals ? 20e6 : spine);
      latencies.push_back(near ? std::chrono::microseconds(20) : std::chrono::nanoseconds(milliseconds(5)));
    }
  }
  return link;
}

// Virtual seconds of one exchange of 64 rows of 4 KB per pair.
double seconds_of(int locals, int nodes, double spine, RowPath path) {
  const int ranks = locals * nodes;
  const comm::CountMatrix counts{ranks, std::vector<int64_t>(static_cast<size_t>(ranks) * static_cast<size_t>(ranks), 64)};
  double slowest = 0;
  std::mutex mutex;
  harness::on_ranks(ranks, {.link = rails(ranks, locals, spine)}, [&](comm::World& world) {
    const at::Tensor in = at::zeros({64 * ranks, 1024}), out = at::empty_like(in);
    const RowExchange exchange(world.everyone(), locals, path);
    world.everyone().barrier().wait();
    const auto begun = world.clock().now();
    exchange.start(out, in, counts, {comm::Purpose::activation, "rows"}).wait();
    const std::lock_guard lock(mutex);
    slowest = std::max(slowest, std::chrono::duration<double>(world.clock().now() - begun).count());
  });
  return slowest;
}

TEST(RowExchange, ByNodeIsFasterOverSlowLinksBetweenNodes) {
  // 2 nodes of 4, 20 MB/s and 5 ms between any two ranks of different nodes.
  EXPECT_LT(seconds_of(4, 2, 20e6, RowPath::by_node), 0.7 * seconds_of(4, 2, 20e6, RowPath::flat));
  // Other rails are four times farther.
  for (const auto& [locals, nodes] : {std::pair{2, 2}, {4, 2}, {2, 4}})
    EXPECT_LT(seconds_of(locals, nodes, 5e6, RowPath::by_node), 0.7 * seconds_of(locals, nodes, 5e6, RowPath::flat)) << locals;
}

// The cost model against the clock of the simulated network.
TEST(RowExchange, TheLinksChooseTheFasterWay) {
  for (const auto& [locals, nodes] : {std::pair{2, 2}, {4, 2}, {2, 4}})
    for (const double spine : {5e6, 20e6, 1e9}) {
      const double flat = seconds_of(locals, nodes, spine, RowPath::flat), by_node = seconds_of(locals, nodes, spine, RowPath::by_node);
      EXPECT_EQ(seconds_of(locals, nodes, spine, RowPath::by_links), std::min(flat, by_node)) << locals << " " << nodes << " " << spine;
      const comm::LinkModel links = rails(locals * nodes, locals, spine);
      const auto facts = [&](int peer) { return comm::facts_of(links, {0, peer}); };
      const comm::NodeLinks three{facts(1), facts(locals), facts(locals + 1)};
      const auto n = static_cast<size_t>(locals * nodes);
      const comm::CountMatrix counts{locals * nodes, std::vector<int64_t>(n * n, 64)};
      const auto predicted = [&](comm::AllToAllPath path) {
        return std::chrono::duration<double>(comm::cost(path, counts, 4096, locals, three)).count();
      };
      EXPECT_NEAR(predicted(comm::AllToAllPath::flat), flat, 0.02 * flat) << locals << " " << nodes << " " << spine;
      EXPECT_NEAR(predicted(comm::AllToAllPath::by_node), by_node, 0.02 * by_node) << locals << " " << nodes << " " << spine;
    }
}

}  // namespace
}  // namespace cairn::mesh
