// The coded all-reduce on both transports, against plain loops over whole vectors.
#include "comm/collectives/coded_all_reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "comm/transport.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using harness::on_ranks;
using namespace std::chrono_literals;

using Floats = std::vector<float>;

// What rank r holds at i: of any size, so that the order of a sum shows.
Floats values(int rank, int64_t count) {
  Floats x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761 + rank * 40503 + 77) * 2246822519u;
    x[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(mixed)), -31 - static_cast<int>(mixed % 9));
  }
  return x;
}

Floats through(const Codec& codec, const Floats& x) {
  const auto count = static_cast<int64_t>(x.size());
  std::vector<std::byte> codes(static_cast<size_t>(codec.encoded_bytes(count)));
  Floats y(x.size());
  codec.encode(x.data(), count, codes.data());
  codec.decode(codes.data(), count, y.data());
  return y;
}

// What every rank must hold at the end.
Floats expected(const Codec& parts, const Codec& sums, int ranks, int64_t count) {
  Floats sum = through(parts, values(0, count));
  for (int rank = 1; rank < ranks; ++rank) {
    const Floats next = through(parts, values(rank, count));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + next[i];
  }
  return through(sums, sum);
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Runs one coded all-reduce among all ranks, as a group would.
Floats reduced(World& world, const Codec& parts, const Codec& sums, Floats x, uint64_t sequence) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Envelope envelope;
  envelope.group = 77;
  envelope.sequence = sequence;
  Exchange exchange(world.transport(), ranks, world.rank(), envelope, Purpose::gradient);
  Coroutine task = coded_all_reduce(exchange, parts, sums, x.data(), static_cast<int64_t>(x.size()));
  EXPECT_TRUE(world.transport().drive([&] { return task.done(); }, world.clock().now() + 60s, "a coded all-reduce"));
  if (task.error()) std::rethrow_exception(task.error());
  return x;
}

struct Case {
  On on;
  int ranks;
};

class CodedAllReduce : public testing::TestWithParam<Case> {
 protected:
  int n() const { return GetParam().ranks; }
  harness::Run run(const std::function<void(World&)>& body) const { return on_ranks(n(), {.on = GetParam().on}, body); }
};

const std::vector<int64_t> kCounts{0, 1, 2, 127, 129, 256, 257, 1031, 65'537};

TEST_P(CodedAllReduce, GivesEveryRankTheBitsOfAPlainLoop) {
  for (const std::string& name : codec_names()) {
    const auto codec = make_codec(name);
    std::vector<Floats> plain;
    for (const int64_t count : kCounts) plain.push_back(expected(*codec, *codec, n(), count));
    run([&](World& world) {
      for (size_t i = 0; i < kCounts.size(); ++i) {
        const Floats y = reduced(world, *codec, *codec, values(world.rank(), kCounts[i]), i);
        ASSERT_TRUE(same_bits(y, plain[i])) << name << " of " << kCounts[i];
      }
    });
  }
}

TEST_P(CodedAllReduce, WithFp32IsTheExactAllReduce) {
  run([this](World& world) {
    const auto codec = make_codec("fp32");
    Floats exact = values(world.rank(), 10'007);
    world.everyone().all_reduce({exact.data(), 10'007, Dtype::f32}, Reduce::sum, {Purpose::data, "x"}).wait();
    EXPECT_TRUE(same_bits(reduced(world, *codec, *codec, values(world.rank(), 10'007), 0), exact));
  });
}

TEST_P(CodedAllReduce, MaySendSumsInAnotherCodec) {
  run([this](World& world) {
    const auto parts = make_codec("int8"), sums = make_codec("bf16");
    for (const int64_t count : {0, 1, 1031}) {
      const Floats y = reduced(world, *parts, *sums, values(world.rank(), count), static_cast<uint64_t>(count));
      ASSERT_TRUE(same_bits(y, expected(*parts, *sums, n(), count))) << count;
    }
  });
}

TEST_P(CodedAllReduce, SendsTheBytesOfTheFormula) {
  for (const auto& [name, count] : {std::pair("int8", 1031), std::pair("fp8", 128 * n() * 7), std::pair("bf16", 1)}) {
    const auto codec = make_codec(name);
    const harness::Run ran = run([&](World& world) { reduced(world, *codec, *codec, values(world.rank(), count), 0); });
    const std::vector<int64_t> counts = block_counts(count, n(), codec->block());
    for (int rank = 0; rank < n(); ++rank) {
      int64_t bytes = 0;
      for (int peer = 0; peer < n(); ++peer) {
        if (peer != rank) bytes += codec->encoded_bytes(counts[peer]) + codec->encoded_bytes(counts[rank]);
      }
      EXPECT_EQ(ran.ledger.bytes_sent(rank, Purpose::gradient), bytes) << name << " on rank " << rank;
      if (count % (codec->block() * n()) == 0) {
        EXPECT_EQ(bytes, 2 * (n() - 1) * codec->encoded_bytes(count) / n());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CodedAllReduce,
                         testing::Values(Case{On::local, 1}, Case{On::local, 2}, Case{On::local, 5}, Case{On::net, 3},
                                         Case{On::machines, 3}),
                         [](const auto& given) { return harness::name(given.param.on) + std::to_string(given.param.ranks); });

// More pieces than are on their way at once; rank 0 has one more than rank 1.
TEST(CodedAllReduceInPieces, GivesEveryRankTheBitsOfAPlainLoop) {
  for (const On on : {On::local, On::net}) {
    const int64_t count = 2 * (128 << 10) * 6 + 200;
    const auto codec = make_codec("int8");
    const Floats plain = expected(*codec, *codec, 2, count);
    on_ranks(2, {.on = on},
             [&](World& world) { EXPECT_TRUE(same_bits(reduced(world, *codec, *codec, values(world.rank(), count), 0), plain)); });
  }
}

TEST(CodedAllReduceInPieces, MayBeGivenUpHalfWay) {
  on_ranks(2, [](World& world) {
    const auto codec = make_codec("bf16");
    const std::vector<int> ranks{0, 1};
    Floats x = values(world.rank(), 1'000'003);
    Envelope envelope;
    envelope.group = 77;
    Exchange exchange(world.transport(), ranks, world.rank(), envelope, Purpose::gradient);
    {
      const Coroutine task = coded_all_reduce(exchange, *codec, x.data(), static_cast<int64_t>(x.size()));
      EXPECT_FALSE(task.done());
    }
    world.everyone().barrier().wait();
  });
}

// So that a rank that is late or calls something else is noticed by all, not only by those that own a part.
TEST(CodedAllReduceOfNothing, StillHearsFromEveryRank) {
  on_ranks(3, [](World& world) {
    const auto codec = make_codec("int8");
    const std::vector<int> ranks{0, 1, 2};
    Envelope envelope;
    envelope.group = 77;
    const auto late = world.clock().now() + 1s;
    if (world.rank() == 2) world.timer(late).wait();
    Exchange exchange(world.transport(), ranks, world.rank(), envelope, Purpose::gradient);
    const Coroutine task = coded_all_reduce(exchange, *codec, nullptr, 0);
    EXPECT_TRUE(world.transport().drive([&] { return task.done(); }, world.clock().now() + 60s, "nothing"));
    EXPECT_GE(world.clock().now(), late);
  });
}

TEST(BlockCounts, SpreadsWholeBlocks) {
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(block_counts(0, 3, 256), (Counts{0, 0, 0}));
  EXPECT_EQ(block_counts(1, 3, 256), (Counts{1, 0, 0}));
  EXPECT_EQ(block_counts(257, 3, 256), (Counts{256, 1, 0}));
  EXPECT_EQ(block_counts(1031, 3, 256), (Counts{512, 512, 7}));
  EXPECT_EQ(block_counts(7, 3, 1), (Counts{3, 2, 2}));
}

}  // namespace
}  // namespace cairn::comm
