// reduce and coded_all_reduce as a group offers them, on both transports: values, names, mismatches.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/codec.h"
#include "comm/collectives/coded_all_reduce.h"
#include "comm/group.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using harness::on_ranks;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};

Span span(std::vector<float>& x) { return {x.data(), static_cast<int64_t>(x.size()), Dtype::f32}; }

// Of many sizes, so that the order of a sum shows.
float value(int rank, int64_t i) {
  return std::ldexp(1.0f + static_cast<float>((i * 7 + rank * 5) % 97) / 97, static_cast<int>((rank * 5 + i) % 23));
}

std::vector<float> values(int rank, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[i] = value(rank, i);
  return x;
}

class GroupReduce : public testing::TestWithParam<On> {};

TEST_P(GroupReduce, GivesTheRootAloneTheSumInRankOrder) {
  for (const int n : {1, 2, 3, 5}) {
    on_ranks(n, {.on = GetParam()}, [n](World& world) {
      for (const int64_t count : {0, 1, 97, 70'001}) {  // the last one is spread among five
        const int root = n - 1;
        std::vector<float> x = values(world.rank(), count), y = x;
        const Work sum = world.everyone().reduce(span(x), root, Reduce::sum, kW);
        world.everyone().reduce(span(y), 0, Reduce::max, kW).wait();
        sum.wait();
        for (int64_t i = 0; i < count; ++i) {
          float plain = value(0, i), most = plain;
          for (int r = 1; r < n; ++r) plain += value(r, i), most = std::max(most, value(r, i));
          ASSERT_EQ(x[i], world.rank() == root ? plain : value(world.rank(), i)) << i;
          ASSERT_EQ(y[i], world.rank() == 0 ? most : value(world.rank(), i)) << i;
        }
      }
    });
  }
}

TEST_P(GroupReduce, AnotherSizeIsAMismatchAtTheRoot) {
  const harness::Run run = on_ranks(3, {.on = GetParam(), .deadline = 60s, .expect_errors = true}, [](World& world) {
    std::vector<float> x(world.rank() == 2 ? 4 : 5);
    world.everyone().reduce(span(x), 0, Reduce::min, kW).wait();
    world.everyone().barrier().wait();
  });
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("rank 2 called reduce of w, 4 f32 min, root 0"));
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("rank 0 called reduce of w, 5 f32 min, root 0"));
  EXPECT_EQ(run.error_on(0).peer(), 2);
}

TEST_P(GroupReduce, CodedAllReduceIsBitwiseIdenticalOnEveryRank) {
  for (const std::string& name : codec_names()) {
    std::vector<std::vector<float>> results(3);
    const harness::Run run = on_ranks(3, {.on = GetParam()}, [&](World& world) {
      std::vector<float> x = values(world.rank(), 1031);
      Work work;
      {
        const auto codec = make_codec(name);  // need not live longer
        work = world.everyone().coded_all_reduce(span(x), *codec, kW);
      }
      work.wait();
      EXPECT_EQ(world.everyone().history().back().name, "coded_all_reduce of w, 1031 f32 as " + name);
      results[world.rank()] = x;
    });
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    const auto codec = make_codec(name);
    int64_t bytes = 0;
    for (const int64_t count : block_counts(1031, 3, codec->block())) bytes += 2 * 2 * codec->encoded_bytes(count);
    EXPECT_EQ(run.ledger.total(Purpose::gradient).bytes, bytes);
    for (int64_t i = 0; i < 1031; ++i) {
      const float plain = value(0, i) + value(1, i) + value(2, i);
      if (name == "fp32") {
        EXPECT_EQ(results[0][i], plain);
      }
      if (name == "bf16") {
        EXPECT_NEAR(results[0][i], plain, plain * 0x1p-7) << i;
      }
    }
  }
}

TEST_P(GroupReduce, AnotherCodecIsAMismatchThatNamesBoth) {
  const harness::Run run = on_ranks(3, {.on = GetParam(), .deadline = 60s, .expect_errors = true}, [](World& world) {
    std::vector<float> x(512, 1.0f);
    world.everyone().coded_all_reduce(span(x), *make_codec(world.rank() == 1 ? "bf16" : "fp16"), kW).wait();  // as many bytes
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(run.error_on(rank).peer(), 1) << rank;
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("coded_all_reduce of w, 512 f32 as bf16"));
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("coded_all_reduce of w, 512 f32 as fp16"));
  }
}

INSTANTIATE_TEST_SUITE_P(On, GroupReduce, testing::Values(On::local, On::net, On::machines),
                         [](const auto& one) { return harness::name(one.param); });

TEST(GroupReduceArguments, AreChecked) {
  on_ranks(1, [](World& world) {
    std::vector<double> x(4);
    const Span wide{x.data(), 4, Dtype::f64};
    const auto refused = [](auto call) {
      try {
        call();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    EXPECT_THAT(refused([&] { world.everyone().coded_all_reduce(wide, *make_codec("int8"), kW).wait(); }), HasSubstr("only f32"));
    EXPECT_THAT(refused([&] { world.everyone().reduce(wide, 1, Reduce::sum, kW).wait(); }), HasSubstr("no rank 1 in a group of 1"));
  });
}

TEST(CodecNumber, GoesThereAndBack) {
  for (const std::string& name : codec_names()) EXPECT_EQ(codec_name(codec_number(name)), name);
  EXPECT_EQ(codec_name(0), "codec 0");
  EXPECT_EQ(codec_name(200), "codec 200");
  EXPECT_THROW(codec_number("int7"), Error);
}

}  // namespace
}  // namespace cairn::comm
