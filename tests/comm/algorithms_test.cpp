// Every collective algorithm, for any number of ranks: results in its documented order, traffic as its formula says.
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "comm/collectives/choose_algorithm.h"
#include "comm/collectives/collectives.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using harness::on_ranks;
using namespace std::chrono_literals;

using Floats = std::vector<float>;
using Algorithm = Coroutine (*)(Exchange&, const Arguments&);

// Magnitudes vary, so that the order of summation shows in the result.
Floats values(int rank, int64_t count) {
  Floats x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761 + rank * 40503 + 77) * 2246822519u;
    x[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(mixed)), -31 - static_cast<int>(mixed % 9));
  }
  return x;
}

Span span(Floats& x) { return {x.data(), static_cast<int64_t>(x.size()), Dtype::f32}; }

// Runs one algorithm among all ranks, as a group would.
void run(World& world, Algorithm algorithm, const Arguments& arguments, uint64_t sequence) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Envelope envelope;
  envelope.group = 77;
  envelope.sequence = sequence;
  Exchange exchange(world.transport(), ranks, world.rank(), envelope, Purpose::gradient);
  Coroutine task = algorithm(exchange, arguments);
  EXPECT_TRUE(world.transport().drive([&] { return task.done(); }, world.clock().now() + 60s, "an algorithm"));
  if (task.error()) std::rethrow_exception(task.error());
}

Algorithm function(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::ring:
      return &all_reduce_ring;
    case AllReduce::halving:
      return &all_reduce_halving;
    case AllReduce::tree:
      return &all_reduce_tree;
    case AllReduce::direct:
      break;
  }
  return &all_reduce_direct;
}

// One element's sum, in the order that choose_algorithm.h promises; x is by rank.
float in_order(AllReduce algorithm, Floats x, int owner) {
  const int n = static_cast<int>(x.size());
  if (algorithm == AllReduce::ring) std::rotate(x.begin(), x.begin() + (owner + 1) % n, x.end());
  if (algorithm == AllReduce::ring || algorithm == AllReduce::direct) {
    float sum = x[0];
    for (int r = 1; r < n; ++r) sum += x[r];
    return sum;
  }
  if (algorithm == AllReduce::halving) {
    const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
    for (int pair = 0; pair < n - power; ++pair) {
      x[pair] += x[pair + 1];
      x.erase(x.begin() + pair + 1);
    }
  }
  while (x.size() > 1) {  // neighbours; the last one may be alone
    Floats next;
    for (size_t i = 0; i < x.size(); i += 2) next.push_back(i + 1 < x.size() ? x[i] + x[i + 1] : x[i]);
    x = next;
  }
  return x[0];
}

Floats expected(AllReduce algorithm, int n, int64_t count) {
  std::vector<Floats> all;
  for (int r = 0; r < n; ++r) all.push_back(values(r, count));
  const std::vector<int64_t> counts = even_counts(count, n);
  Floats sums(static_cast<size_t>(count));
  int owner = 0;
  int64_t end = counts[0];
  for (int64_t i = 0; i < count; ++i) {
    while (i >= end) end += counts[++owner];
    Floats x;
    for (int r = 0; r < n; ++r) x.push_back(all[r][i]);
    sums[i] = in_order(algorithm, x, owner);
  }
  return sums;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Case {
  On on;
  int ranks;
};

class Algorithms : public testing::TestWithParam<Case> {
 protected:
  int n() const { return GetParam().ranks; }
  harness::Run on(const std::function<void(World&)>& body) const { return on_ranks(n(), {.on = GetParam().on}, body); }
};

constexpr AllReduce kAllReduces[] = {AllReduce::direct, AllReduce::ring, AllReduce::halving, AllReduce::tree};
const std::vector<int64_t> kCounts{0, 1, 2, 7, 16, 97, 1031};

TEST_P(Algorithms, AllReduceGivesEveryRankTheBitsOfTheDocumentedOrder) {
  for (const AllReduce algorithm : kAllReduces) {
    std::vector<Floats> plain;
    for (const int64_t count : kCounts) plain.push_back(expected(algorithm, n(), count));
    on([&](World& world) {
      for (size_t i = 0; i < kCounts.size(); ++i) {
        Floats x = values(world.rank(), kCounts[i]);
        run(world, function(algorithm), {.out = span(x), .counts = even_counts(kCounts[i], n())}, i);
        ASSERT_TRUE(same_bits(x, plain[i])) << name(algorithm) << " of " << kCounts[i] << " on rank " << world.rank();
      }
    });
  }
}

TEST_P(Algorithms, AllReduceGivesTheLargestToo) {
  on([this](World& world) {
    for (const AllReduce algorithm : kAllReduces) {
      Floats x = values(world.rank(), 301);
      run(world, function(algorithm), {.out = span(x), .reduce = Reduce::max, .counts = even_counts(301, n())},
          static_cast<uint64_t>(algorithm));
      for (int64_t i = 0; i < 301; ++i) {
        float most = values(0, 301)[i];
        if (i % 50 != 0) continue;
        for (int r = 1; r < n(); ++r) most = std::max(most, values(r, 301)[i]);
        ASSERT_EQ(x[i], most) << name(algorithm);
      }
    }
  });
}

// What the formulas of choose_algorithm.h say, for a count that all of these divide: bytes and messages by rank.
TEST_P(Algorithms, AllReduceSendsTheBytesOfItsFormula) {
  const int64_t count = 16 * 9 * 5 * 7;
  const double s = 4.0 * count;
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n()))), pairs = n() - power;
  for (const AllReduce algorithm : kAllReduces) {
    const harness::Run ran = on([&](World& world) {
      Floats x = values(world.rank(), count);
      run(world, function(algorithm), {.out = span(x), .counts = even_counts(count, n())}, 0);
    });
    for (int rank = 0; rank < n(); ++rank) {
      double bytes = 2.0 * (n() - 1) / n() * s;
      int64_t messages = 2 * (n() - 1);
      if (algorithm == AllReduce::halving) {
        const bool paired = rank < 2 * pairs, worked_for = paired && rank % 2 == 1;
        bytes = (worked_for ? 0 : 2.0 * (power - 1) / power * s) + (paired ? s : 0);
        messages = (worked_for ? 0 : 2 * std::countr_zero(static_cast<unsigned>(power))) + (paired ? 1 : 0);
      } else if (algorithm == AllReduce::tree) {
        int children = 0;
        for (int d = 1; (rank & d) == 0 && rank + d < n(); d *= 2) ++children;
        messages = children + (rank > 0 ? 1 : 0);
        bytes = static_cast<double>(messages) * s;
      }
      const auto booked = static_cast<double>(ran.ledger.bytes_sent(rank, Purpose::gradient));
      EXPECT_NEAR(booked, bytes, 0.01 * bytes) << name(algorithm) << " on rank " << rank;
      EXPECT_EQ(ran.ledger.messages_sent(rank, Purpose::gradient), messages) << name(algorithm) << " on rank " << rank;
    }
  }
}

TEST_P(Algorithms, AllGatherPutsUnevenPartsOneAfterTheOther) {
  std::vector<int64_t> counts;
  for (int r = 0; r < n(); ++r) counts.push_back(r * 5 % 7 * 11);  // some have none
  Floats plain;
  for (int r = 0; r < n(); ++r) {
    const Floats part = values(r, counts[r]);
    plain.insert(plain.end(), part.begin(), part.end());
  }
  for (const Algorithm algorithm : {&all_gather_direct, &all_gather_ring, &all_gather_doubling}) {
    const harness::Run ran = on([&](World& world) {
      Floats in = values(world.rank(), counts[world.rank()]), out(plain.size());
      run(world, algorithm, {.out = span(out), .in = span(in), .counts = counts}, 0);
      ASSERT_EQ(out, plain);
    });
    // Every part reaches every other rank once, whoever sends it.
    EXPECT_EQ(ran.ledger.total(Purpose::gradient).bytes, static_cast<int64_t>(plain.size()) * 4 * (n() - 1));
  }
}

TEST_P(Algorithms, BroadcastGivesTheRootsValues) {
  for (const Algorithm algorithm : {&broadcast_flat, &broadcast_tree}) {
    const harness::Run ran = on([&](World& world) {
      uint64_t sequence = 0;
      for (const int64_t count : {1, 97}) {
        for (int root = 0; root < n(); ++root) {
          Floats x = values(world.rank(), count);
          run(world, algorithm, {.out = span(x), .root = root}, sequence++);
          ASSERT_EQ(x, values(root, count)) << "root " << root;
        }
      }
    });
    EXPECT_EQ(ran.ledger.total(Purpose::gradient), (Ledger::Total{4 * 98 * n() * (n() - 1), 2 * n() * (n() - 1)}));
  }
}

TEST_P(Algorithms, ReduceGivesTheRootTheSumInRankOrderAndLeavesTheOthersAlone) {
  std::vector<Floats> plain;
  for (const int64_t count : kCounts) plain.push_back(expected(AllReduce::direct, n(), count));
  for (const Algorithm algorithm : {&reduce_flat, &reduce_spread}) {
    on([&](World& world) {
      uint64_t sequence = 0;
      for (size_t i = 0; i < kCounts.size(); ++i) {
        for (const int root : {0, n() / 2, n() - 1}) {
          Floats x = values(world.rank(), kCounts[i]);
          run(world, algorithm, {.out = span(x), .root = root, .counts = even_counts(kCounts[i], n())}, sequence++);
          ASSERT_TRUE(same_bits(x, world.rank() == root ? plain[i] : values(world.rank(), kCounts[i]))) << kCounts[i] << " to " << root;
        }
      }
    });
  }
}

TEST_P(Algorithms, ReduceSendsTheBytesOfItsFormula) {
  const int64_t count = 16 * 9 * 5 * 7, s = 4 * count;
  const int root = n() - 1;
  for (const Algorithm algorithm : {&reduce_flat, &reduce_spread}) {
    const harness::Run ran = on([&](World& world) {
      Floats x = values(world.rank(), count);
      run(world, algorithm, {.out = span(x), .root = root, .counts = even_counts(count, n())}, 0);
    });
    for (int rank = 0; rank < n(); ++rank) {
      const int64_t at_root = algorithm == &reduce_flat ? 0 : s * (n() - 1) / n();  // its parts, to their owners
      EXPECT_NEAR(static_cast<double>(ran.ledger.bytes_sent(rank, Purpose::gradient)), rank == root ? at_root : s, 0.01 * s);
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int n = 1; n <= 9; ++n) all.push_back({On::local, n});
  all.push_back({On::local, 16});
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9}) all.push_back({On::net, n});
  return all;
}

INSTANTIATE_TEST_SUITE_P(On, Algorithms, testing::ValuesIn(cases()),
                         [](const auto& one) { return (one.param.on == On::local ? "local" : "net") + std::to_string(one.param.ranks); });

// More pieces than are in flight at once, and a short last one. Sums of small integers: the order is tested above.
TEST(AlgorithmsInPieces, LoseNoPiece) {
  constexpr int64_t kCount = 3 * (128 << 10) * 5 + 4321;
  const auto filled = [](float times) {
    Floats x(kCount);
    for (int64_t i = 0; i < kCount; ++i) x[i] = times * static_cast<float>(i % 8191);
    return x;
  };
  const Floats sum = filled(6);
  for (const On on : {On::local, On::net}) {
    on_ranks(3, {.on = on}, [&](World& world) {
      const std::vector<int64_t> counts = even_counts(kCount, 3);
      const Floats own = filled(static_cast<float>(world.rank() + 1));
      uint64_t sequence = 0;
      for (const AllReduce algorithm : kAllReduces) {
        Floats x = own;
        run(world, function(algorithm), {.out = span(x), .counts = counts}, sequence++);
        EXPECT_TRUE(same_bits(x, sum)) << name(algorithm);
      }
      Floats x;
      for (const Algorithm algorithm : {&reduce_flat, &reduce_spread}) {
        x = own;
        run(world, algorithm, {.out = span(x), .root = 1, .counts = counts}, sequence++);
        EXPECT_TRUE(same_bits(x, world.rank() == 1 ? sum : own));
      }
      run(world, &broadcast_tree, {.out = span(x), .root = 1}, sequence++);
      EXPECT_TRUE(same_bits(x, sum));
      Floats all(3 * kCount);
      run(world, &all_gather_ring, {.out = span(all), .in = span(x), .counts = std::vector<int64_t>(3, kCount)}, sequence++);
      EXPECT_EQ(std::memcmp(all.data() + 2 * kCount, sum.data(), sum.size() * 4), 0);
    });
  }
}

TEST(AlgorithmsInPieces, MayBeGivenUpHalfWay) {
  for (const Algorithm algorithm : {&all_reduce_ring, &all_reduce_halving, &all_reduce_tree, &reduce_spread}) {
    on_ranks(3, [&](World& world) {
      const std::vector<int> ranks{0, 1, 2};
      Floats x = values(world.rank(), 1'000'003);
      Envelope envelope;
      envelope.group = 77;
      Exchange exchange(world.transport(), ranks, world.rank(), envelope, Purpose::gradient);
      const Arguments arguments{.out = span(x), .root = 1, .counts = even_counts(1'000'003, 3)};
      {
        const Coroutine task = algorithm(exchange, arguments);
        EXPECT_FALSE(task.done());
      }
      world.everyone().barrier().wait();
    });
  }
}

}  // namespace
}  // namespace cairn::comm
