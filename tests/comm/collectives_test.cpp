// Every collective on every transport, against plain loops. Where they run: collectives_on_test.cpp, and mpi_main.cpp.
#include "comm/collectives/collectives.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "comm/affine_map.h"
#include "comm/collectives_suite.h"

namespace cairn::comm {
namespace {

constexpr Label kTest{Purpose::data, "test"};

Span span(std::vector<float>& values) { return {values.data(), static_cast<int64_t>(values.size()), Dtype::f32}; }

// What rank r holds at i: small integers, so that sums are exact, different for every rank and place.
float value(int rank, int64_t i) { return static_cast<float>((rank + 1) * 3 + (i * 7 + rank) % 11); }

std::vector<float> values(int rank, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[i] = value(rank, i);
  return x;
}

const std::vector<int64_t> kCounts{0, 1, 3, 97, 1000, 65537};

TEST_P(Collectives, AllReduceGivesTheSumOfAllRanks) {
  run([this](World& world) {
    for (const int64_t count : kCounts) {
      std::vector<float> x = values(world.rank(), count);
      world.everyone().all_reduce(span(x), Reduce::sum, kTest).wait();
      for (int64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int r = 0; r < n(); ++r) sum += value(r, i);
        ASSERT_EQ(x[i], sum) << "element " << i << " of " << count;
      }
    }
  });
}

TEST_P(Collectives, AllReduceGivesTheLargestAndSmallest) {
  run([this](World& world) {
    std::vector<float> high = values(world.rank(), 97), low = high;
    Work both = Work::all(
        {world.everyone().all_reduce(span(high), Reduce::max, kTest), world.everyone().all_reduce(span(low), Reduce::min, kTest)});
    both.wait();
    EXPECT_TRUE(both.ready());
    for (int64_t i = 0; i < 97; ++i) {
      float max = value(0, i), min = value(0, i);
      for (int r = 1; r < n(); ++r) max = std::max(max, value(r, i)), min = std::min(min, value(r, i));
      ASSERT_EQ(high[i], max);
      ASSERT_EQ(low[i], min);
    }
  });
}

// Numbers whose sum depends on the order: every rank must hold the bits of the sum from rank 0 up.
TEST_P(Collectives, AllReduceSumsInRankOrderOnEveryRank) {
  const auto odd = [](int rank, int64_t i) {
    return std::sin(static_cast<float>(i * 31 + rank)) * std::pow(10.0f, static_cast<float>((rank * 5 + i) % 9));
  };
  run([&](World& world) {
    std::vector<float> x(1001);
    for (int64_t i = 0; i < 1001; ++i) x[i] = odd(world.rank(), i);
    world.everyone().all_reduce(span(x), Reduce::sum, kTest).wait();
    for (int64_t i = 0; i < 1001; ++i) {
      float sum = odd(0, i);
      for (int r = 1; r < n(); ++r) sum += odd(r, i);
      ASSERT_EQ(std::memcmp(&x[i], &sum, sizeof sum), 0) << i;
    }
  });
}

TEST_P(Collectives, BroadcastGivesTheRootsValues) {
  run([this](World& world) {
    for (const int64_t count : kCounts) {
      for (int root = 0; root < n(); ++root) {
        std::vector<float> x = values(world.rank(), count);
        world.everyone().broadcast(span(x), root, kTest).wait();
        ASSERT_EQ(x, values(root, count)) << "root " << root;
      }
    }
  });
}

TEST_P(Collectives, AllGatherPutsUnevenPartsOneAfterTheOther) {
  run([this](World& world) {
    std::vector<int64_t> counts(static_cast<size_t>(n()));
    for (int r = 0; r < n(); ++r) counts[r] = r * 5 % 7;  // some have none
    std::vector<float> expected;
    for (int r = 0; r < n(); ++r) {
      const auto part = values(r, counts[r]);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    std::vector<float> in = values(world.rank(), counts[world.rank()]), out(expected.size());
    world.everyone().all_gather(span(out), span(in), kTest, counts).wait();
    EXPECT_EQ(out, expected);
  });
}

TEST_P(Collectives, AllGatherWorksInPlaceWithEvenParts) {
  run([this](World& world) {
    const std::vector<int64_t> counts = even_counts(1009, n());
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
    const std::vector<float> expected = values(0, 1009);
    std::vector<float> out(1009, -1.0f);
    for (int64_t i = begin; i < begin + counts[world.rank()]; ++i) out[i] = expected[i];
    world.everyone().all_gather(span(out), {out.data() + begin, counts[world.rank()], Dtype::f32}, kTest).wait();
    EXPECT_EQ(out, expected);
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPartOfTheSum) {
  run([this](World& world) {
    for (const int64_t count : kCounts) {
      std::vector<int64_t> counts = even_counts(count, n());
      std::reverse(counts.begin(), counts.end());  // uneven where it does not divide
      const int64_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
      std::vector<float> in = values(world.rank(), count), out(static_cast<size_t>(counts[world.rank()]));
      world.everyone().reduce_scatter(span(out), span(in), Reduce::sum, kTest, counts).wait();
      for (size_t i = 0; i < out.size(); ++i) {
        float sum = 0;
        for (int r = 0; r < n(); ++r) sum += value(r, begin + static_cast<int64_t>(i));
        ASSERT_EQ(out[i], sum);
      }
      ASSERT_EQ(in, values(world.rank(), count)) << "the input was touched";
    }
  });
}

TEST_P(Collectives, GatherAndScatterAreInverse) {
  run([this](World& world) {
    const int root = n() - 1;
    std::vector<int64_t> counts(static_cast<size_t>(n()));
    for (int r = 0; r < n(); ++r) counts[r] = (r + 1) * 3;
    const int64_t whole = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    std::vector<float> mine = values(world.rank(), counts[world.rank()]), all(world.rank() == root ? static_cast<size_t>(whole) : 0),
                       back(mine.size());
    world.everyone().gather(span(all), span(mine), root, kTest, counts).wait();
    if (world.rank() == root) {
      EXPECT_EQ(all[0], value(0, 0));
    }
    world.everyone().scatter(span(back), span(all), root, kTest, counts).wait();
    EXPECT_EQ(back, mine);
  });
}

TEST_P(Collectives, AllToAllMovesUnevenPartsFromEachToEach) {
  run([this](World& world) {
    const auto count = [](int from, int to) { return int64_t{(from * 2 + to) % 4}; };
    const int me = world.rank();
    std::vector<int64_t> in_counts, out_counts;
    std::vector<float> in, expected;
    for (int r = 0; r < n(); ++r) {
      in_counts.push_back(count(me, r));
      out_counts.push_back(count(r, me));
      for (int64_t i = 0; i < count(me, r); ++i) in.push_back(static_cast<float>(100 * me + 10 * r + i));
      for (int64_t i = 0; i < count(r, me); ++i) expected.push_back(static_cast<float>(100 * r + 10 * me + i));
    }
    std::vector<float> out(expected.size());
    world.everyone().all_to_all(span(out), span(in), kTest, out_counts, in_counts).wait();
    EXPECT_EQ(out, expected);
  });
}

TEST_P(Collectives, SendAndRecvPairUpByOrder) {
  run([this](World& world) {
    Group& all = world.everyone();
    const int next = (world.rank() + 1) % n(), before = (world.rank() + n() - 1) % n();
    if (n() == 1) return;
    std::vector<float> first = values(world.rank(), 5), second = values(world.rank() + 50, 7), one(5), two(7);
    const Work sent = Work::all({all.send(span(first), next, kTest), all.send(span(second), next, kTest)});
    const Work received = Work::all({all.recv(span(one), before, kTest), all.recv(span(two), before, kTest)});
    received.wait();
    sent.wait();
    EXPECT_EQ(one, values(before, 5));
    EXPECT_EQ(two, values(before + 50, 7));
  });
}

TEST_P(Collectives, ManyOperationsInFlightCompleteInTheOrderOfTheirStart) {
  run([this](World& world) {
    constexpr int kMany = 50;
    std::vector<std::vector<float>> x;
    std::vector<Work> works;
    for (int k = 0; k < kMany; ++k) x.push_back(values(world.rank() + k, k % 2 == 0 ? 5 : 500));
    for (int k = 0; k < kMany; ++k) works.push_back(world.everyone().all_reduce(span(x[k]), Reduce::sum, kTest));
    works[kMany / 2].wait();
    for (int k = 0; k <= kMany / 2; ++k) EXPECT_TRUE(works[k].ready()) << k;
    Work::all(works).wait();
    for (int k = 0; k < kMany; ++k) {
      float sum = 0;
      for (int r = 0; r < n(); ++r) sum += value(r + k, 4);
      ASSERT_EQ(x[k][4], sum) << k;
    }
  });
}

TEST_P(Collectives, OverlappingGroupsWorkSideBySide) {
  if (n() < 3) GTEST_SKIP() << "needs three ranks";
  run([this](World& world) {
    std::vector<int> low, high;
    for (int r = 0; r < n() - 1; ++r) low.push_back(r);
    for (int r = n() - 1; r > 0; --r) high.push_back(r);  // in reverse order: positions differ from ranks
    std::vector<Work> works;
    std::vector<float> a = values(world.rank(), 17), b = values(world.rank(), 19);
    if (world.rank() < n() - 1) works.push_back(world.group(low).all_reduce(span(a), Reduce::sum, kTest));
    if (world.rank() > 0) works.push_back(world.group(high).broadcast(span(b), 0, kTest));
    Work::all(works).wait();
    float sum = 0;
    for (int r = 0; r < n() - 1; ++r) sum += value(r, 16);
    EXPECT_TRUE(world.rank() == n() - 1 || a[16] == sum);
    EXPECT_TRUE(world.rank() == 0 || b == values(n() - 1, 19));
  });
}

TEST_P(Collectives, BarrierHoldsEveryRankUntilAllHaveCome) {
  if (GetParam().on == harness::On::mpi) GTEST_SKIP() << "these ranks share no counter; Mpi.ABarrierHoldsTheOthers does it by the clock";
  std::atomic<int> arrived = 0;
  run([&](World& world) {
    ++arrived;
    world.everyone().barrier().wait();
    EXPECT_EQ(arrived, n());
  });
}

TEST_P(Collectives, TheLedgerHoldsTwoTimesTheShareOfTheOthers) {
  constexpr int64_t kCount = 840;  // divisible by all of these rank counts
  const harness::Run result = run([](World& world) {
    std::vector<float> x(kCount);
    world.everyone().all_reduce(span(x), Reduce::sum, {Purpose::gradient, "w"}).wait();
  });
  for (int r = 0; r < n(); ++r) {
    EXPECT_EQ(result.ledger.bytes_sent(r, Purpose::gradient), 2 * 4 * kCount * (n() - 1) / n());
    EXPECT_EQ(result.ledger.messages_sent(r, Purpose::gradient), n() == 2 ? 1 : 2 * (n() - 1));  // two swap so little
    EXPECT_EQ(result.ledger.bytes_sent(r, Purpose::data), 0);
  }
}

// Rank r adds state(r) and multiplies what passes by factor(r): a plain loop over the ranks before.
TEST_P(Collectives, AllScanGivesEachRankTheStateBeforeItAndAfterIt) {
  run([this](World& world) {
    for (const bool backward : {false, true}) {
      for (const int64_t blocks : {0, 1, 3, 64}) {
        constexpr int64_t kRows = 37, kWidth = 53;  // blocks of unequal size
        const auto factor = [](int rank, int64_t row) { return 0.25f * static_cast<float>((rank + row) % 4); };
        std::vector<float> expected(kRows * kWidth), factors(kRows), before(kRows * kWidth, -1.0f),
            state = values(world.rank(), kRows * kWidth);
        const auto pass = [&](int rank) {
          const std::vector<float> own = values(rank, kRows * kWidth);
          for (int64_t i = 0; i < kRows * kWidth; ++i) expected[i] = factor(rank, i / kWidth) * expected[i] + own[i];
        };
        for (int r = backward ? n() - 1 : 0; r != world.rank(); r += backward ? -1 : 1) pass(r);
        for (int64_t row = 0; row < kRows; ++row) factors[row] = factor(world.rank(), row);
        world.everyone()
            .all_scan(span(before), span(state), make_diagonal_map(factors.data(), kRows, kWidth, Dtype::f32),
                      {.backward = backward, .blocks = blocks}, kTest)
            .wait();
        for (int64_t i = 0; i < kRows * kWidth; ++i) ASSERT_NEAR(before[i], expected[i], 1e-4f) << "blocks " << blocks << " element " << i;
        pass(world.rank());
        for (int64_t i = 0; i < kRows * kWidth; ++i) ASSERT_NEAR(state[i], expected[i], 1e-4f) << "blocks " << blocks << " element " << i;
      }
    }
  });
}

// Transitions of delta-rule models are matrices, which do not commute: the order of the ranks shows.
TEST_P(Collectives, AllScanComposesMatricesInRankOrder) {
  run([this](World& world) {
    constexpr int64_t kMatrices = 3, kSize = 2, kWidth = 5, kState = kMatrices * kSize * kWidth;
    const auto matrix = [](int rank, int64_t m, int64_t i, int64_t j) {
      return 0.1 * static_cast<double>((rank * 5 + m * 3 + i * 2 + j) % 7) - 0.2;
    };
    const auto own = [](int rank, int64_t i) { return std::sin(static_cast<double>(rank * 100 + i)); };
    std::vector<double> expected(kState), factors, before(kState), state;
    for (int r = 0; r < world.rank(); ++r) {
      std::vector<double> next(kState);
      for (int64_t e = 0; e < kState; ++e) {
        const int64_t m = e / (kSize * kWidth), i = e / kWidth % kSize, j = e % kWidth;
        next[e] = own(r, e);
        for (int64_t k = 0; k < kSize; ++k) next[e] += matrix(r, m, i, k) * expected[(m * kSize + k) * kWidth + j];
      }
      expected = next;
    }
    for (int64_t e = 0; e < kState; ++e) state.push_back(own(world.rank(), e));
    for (int64_t e = 0; e < kMatrices * kSize * kSize; ++e)
      factors.push_back(matrix(world.rank(), e / (kSize * kSize), e / kSize % kSize, e % kSize));
    world.everyone()
        .all_scan({before.data(), kState, Dtype::f64}, {state.data(), kState, Dtype::f64},
                  make_matrix_map(factors.data(), kMatrices, kSize, kWidth, Dtype::f64), {.blocks = 2}, kTest)
        .wait();
    for (int64_t e = 0; e < kState; ++e) ASSERT_NEAR(before[e], expected[e], 1e-12) << e;
  });
}

// Multiples of 1/4 below 64 are bf16, so nothing is lost.
TEST_P(Collectives, AllScanSendsHalfWhereStatesTravelAsBf16) {
  constexpr int64_t kRows = 9, kWidth = 16;
  const harness::Run result = run([](World& world) {
    std::vector<uint16_t> before(kRows * kWidth);
    std::vector<float> state(kRows * kWidth), factors(kRows, 0.5f);
    for (int64_t i = 0; i < kRows * kWidth; ++i) state[static_cast<size_t>(i)] = static_cast<float>(i % 7);
    world.everyone()
        .all_scan({before.data(), kRows * kWidth, Dtype::bf16}, span(state), make_diagonal_map(factors.data(), kRows, kWidth, Dtype::f32),
                  {.blocks = 4}, {Purpose::activation, "states"})
        .wait();
    if (world.rank() > 1) return;
    for (int64_t i = 0; i < kRows * kWidth; ++i)
      ASSERT_EQ(state[static_cast<size_t>(i)], static_cast<float>(i % 7) * (world.rank() == 0 ? 1.0f : 1.5f)) << i;
  });
  for (int r = 0; r + 1 < n(); ++r) EXPECT_EQ(result.ledger.bytes_sent(r, Purpose::activation), 2 * kRows * kWidth);
}

TEST_P(Collectives, AllScanSendsOneStateWhateverTheNumberOfRanks) {
  constexpr int64_t kRows = 64, kWidth = 100;
  const harness::Run result = run([](World& world) {
    std::vector<float> before(kRows * kWidth), state(kRows * kWidth), factors(kRows, 0.5f);
    world.everyone()
        .all_scan(span(before), span(state), make_diagonal_map(factors.data(), kRows, kWidth, Dtype::f32), {.blocks = 7},
                  {Purpose::activation, "states"})
        .wait();
  });
  for (int r = 0; r < n(); ++r) {
    EXPECT_EQ(result.ledger.bytes_sent(r, Purpose::activation), r == n() - 1 ? 0 : 4 * kRows * kWidth);
    EXPECT_EQ(result.ledger.messages_sent(r, Purpose::activation), r == n() - 1 ? 0 : 7);
  }
}

}  // namespace
}  // namespace cairn::comm
