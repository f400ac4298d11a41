// The words, routes, messages and times of the forms of context attention.
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "mesh/splits.h"
#include "model/context/attention.h"
#include "model/context/choose.h"
#include "model/context/forms.h"
#include "model/context/traffic.h"

namespace cairn::model {
namespace {

using mesh::Interval;

ContextSplit zigzag_split(int64_t length, int parts) { return {length, mesh::split_zigzag(1, length, parts).pieces}; }

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ContextMethod, IsWrittenAsItIsRead) {
  for (const char* text : {"ring", "ring_both_ways", "gather", "ulysses", "token_ring", "ulysses:2,ring:3", "ulysses:3,token_ring:2"})
    EXPECT_EQ(to_string(parse_context_method(text, 6), 6), text);
  EXPECT_EQ(parse_context_method("ulysses:6,ring:1", 6), ContextMethod(ContextForm::ulysses));
  EXPECT_EQ(parse_context_method("ulysses:1,ring:6", 6), ContextMethod(ContextForm::ring));
  EXPECT_EQ(parse_context_method("ring:6", 6), ContextMethod(ContextForm::ring));
}

TEST(ContextMethod, NamesWhatIsWrong) {
  const auto expect = [](const char* text, int64_t ranks, const std::string& part) {
    const std::string message = refusal([&] { static_cast<void>(parse_context_method(text, ranks)); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect("rign", 4, "did you mean \"ring\"?");
  expect("ring:x", 4, "\"x\" is no number of ranks");
  expect("ring:3", 4, "there are 4 ranks along cp");
  expect("ring:2,ring:2", 4, "a product is of ulysses");
  expect("ulysses,ring:2", 4, "a product needs the ranks of both");
  expect("ulysses:3,ring:2", 4, "is for 6 ranks, and there are 4 along cp");
}

TEST(ContextMethod, RefusesHeadsThatDoNotDivide) {
  const auto refused = [](const ContextMethod& method, int64_t ranks, int64_t heads) {
    return refusal([&] { check(method, ranks, heads); });
  };
  EXPECT_EQ(refused(ContextForm::ulysses, 4, 8), "no error");
  EXPECT_EQ(refused(ContextForm::token_ring, 5, 7), "no error");
  EXPECT_NE(refused(ContextForm::ulysses, 4, 6).find("6 heads cannot be divided over 4 ranks: use \"ulysses:2,ring:2\""),
            std::string::npos);
  EXPECT_NE(refused(ContextForm::ulysses, 3, 4).find("use ring"), std::string::npos);
  EXPECT_NE(refused({ContextForm::ring, 4}, 8, 6).find("use \"ulysses:2,ring:4\""), std::string::npos);
}

// The half rule: queries whose front half has no more keys to see travel on without it.
TEST(QueryRoutes, OfAZigzagSplitCarryHalfOnceTheyHaveWrapped) {
  for (const int n : {2, 3, 4, 5, 8}) {
    const int64_t chunk = 3, length = 2 * n * chunk;
    const std::vector<QueryRoute> routes = query_routes(zigzag_split(length, n), {});
    for (int owner = 0; owner < n; ++owner) {
      const QueryRoute& route = routes[static_cast<size_t>(owner)];
      EXPECT_EQ(route.last, n - 1);
      for (int distance = 1; distance < n; ++distance) {
        const int64_t rows = owner >= distance ? 2 * chunk : chunk;
        EXPECT_EQ(rows_of(route.seeing[static_cast<size_t>(distance)]), rows) << n << " " << owner << " " << distance;
        EXPECT_EQ(rows_of(route.carried[static_cast<size_t>(distance)]), rows);
      }
    }
  }
}

TEST(QueryRoutes, OfContiguousSplitsEndWhereNoKeyIsSeen) {
  const ContextSplit split{12, {{{0, 4}}, {{4, 8}}, {{8, 12}}}};
  const std::vector<QueryRoute> causal = query_routes(split, {});
  EXPECT_EQ(causal[0].last, 0);
  EXPECT_EQ(causal[1].last, 1);
  EXPECT_EQ(causal[2].last, 2);
  const std::vector<QueryRoute> window = query_routes(split, {.window = 3});
  EXPECT_EQ(window[2].last, 1);
  EXPECT_EQ(window[2].seeing[1], (std::vector<Interval>{{8, 10}}));  // only these see the last keys of the rank below
}

TEST(UlyssesHeads, GoWithTheKeysThatTheyRead) {
  const auto keys = [](int64_t heads, int64_t kv_heads, int64_t ranks, int64_t rank) {
    const UlyssesHeads one = ulysses_heads(heads, kv_heads, ranks, rank);
    return std::array<int64_t, 3>{one.first_key, one.keys, one.repeated};
  };
  EXPECT_EQ(keys(8, 4, 2, 1), (std::array<int64_t, 3>{2, 2, 0}));
  EXPECT_EQ(keys(8, 2, 4, 1), (std::array<int64_t, 3>{0, 1, 0}));  // two ranks read the same key head
  EXPECT_EQ(keys(6, 3, 2, 0), (std::array<int64_t, 3>{0, 2, 1}));
  EXPECT_EQ(keys(6, 3, 2, 1), (std::array<int64_t, 3>{1, 2, 1}));
}

TEST(SeenPairs, AreCountedAsOneByOne) {
  for (const kernels::AttentionOptions& options :
       {kernels::AttentionOptions{}, kernels::AttentionOptions{.window = 4}, kernels::AttentionOptions{.causal = false},
        kernels::AttentionOptions{.causal = false, .window = 5}})
    for (const int n : {1, 2, 3}) {
      const ContextSplit split = zigzag_split(17, n);
      for (int reader = 0; reader < n; ++reader)
        for (int owner = 0; owner < n; ++owner) {
          int64_t pairs = 0;
          for (const Segment& q : segments(split, reader))
            for (const Segment& k : segments(split, owner))
              for (int64_t i = q.positions.begin; i < q.positions.end; ++i)
                for (int64_t j = k.positions.begin; j < k.positions.end; ++j)
                  pairs += (!options.causal || j <= i) && (options.window == 0 || j > i - options.window);
          EXPECT_EQ(seen_pairs(options, split, reader, split, owner), pairs) << n << " " << reader << " " << owner;
        }
    }
}

// Attention on a simulated network, in virtual time: the links alone take time.
struct Timing {
  double forward = 0, backward = 0;
  double total() const { return forward + backward; }
};

struct Case {
  int ranks = 8;
  int64_t length = 512, heads = 8, kv_heads = 8, head_dim = 16;
  comm::LinkModel link = {.latency = std::chrono::microseconds(20), .bytes_per_s = 50e6 / 8, .jitter = 0};

  ContextSizes sizes() const { return {1, kv_heads, head_dim, 4, false, heads}; }
  ContextLinks links() const {
    return {.latency_s = base::seconds(link.latency),
            .bytes_per_s = link.bytes_per_s,
            .shared_card = link.contention == comm::LinkModel::Contention::per_nic};
  }
  ContextSplit split() const { return zigzag_split(length, ranks); }

  Timing run(const ContextMethod& method) const {
    Timing slowest;
    std::mutex lock;
    harness::on_ranks(ranks, {.link = link}, [&](comm::World& world) {
      const int64_t local = held(split(), world.rank());
      const at::Tensor q = at::ones({1, local, heads, head_dim}), k = at::ones({1, local, kv_heads, head_dim});
      const at::Tensor out = at::empty_like(q), lse = at::empty({1, heads, local}), dq = at::empty_like(q), dk = at::empty_like(k),
                       dv = at::empty_like(k);
      const auto timed = [&](const std::function<void()>& act) {
        world.everyone().barrier().wait();
        const auto begun = world.clock().now();
        act();
        return base::seconds(world.clock().now() - begun);
      };
      const double forward = timed([&] { context_attention(out, lse, q, k, k, {}, nullptr, world.everyone(), split(), method); });
      const double backward =
          timed([&] { context_attention_backward(dq, dk, dv, q, q, k, k, out, lse, {}, nullptr, world.everyone(), split(), method); });
      const std::lock_guard guard(lock);
      slowest = {std::max(slowest.forward, forward), std::max(slowest.backward, backward)};
    });
    return slowest;
  }
};

TEST(TokenRing, IsFasterThanRingWhereEveryPairHasALink) {
  const Case one;
  const Timing ring = one.run(ContextForm::ring), token_ring = one.run(ContextForm::token_ring);
  EXPECT_GE(ring.forward / token_ring.forward, 1.45);
  EXPECT_GE(ring.total() / token_ring.total(), 1.4);
}

TEST(TokenRing, GainsNothingWhereCardsAreSharedOrKeysAreFew) {
  Case card;
  card.link.contention = comm::LinkModel::Contention::per_nic;
  Case grouped;
  grouped.kv_heads = 2;
  for (const Case& one : {card, grouped}) {
    EXPECT_LE(one.run(ContextForm::ring).total() / one.run(ContextForm::token_ring).total(), 1.1);
    EXPECT_NE(choose_context(one.sizes(), {}, one.split(), one.links()).best().form, ContextForm::token_ring);
  }
}

// What auto goes by.
TEST(ContextChoice, PredictsWhatTheNetworkTakes) {
  std::vector<Case> cases(3);
  cases[1].link.contention = comm::LinkModel::Contention::per_nic;
  cases[2].ranks = 4, cases[2].kv_heads = 2, cases[2].link.latency = std::chrono::milliseconds(1);
  for (const Case& one : cases) {
    const ContextChoices choices = choose_context(one.sizes(), {}, one.split(), one.links());
    double best = 1e9, chosen = 0;
    for (const ContextChoice& choice : choices.all) {
      const Timing took = one.run(choice.method);
      EXPECT_NEAR(choice.seconds.forward / took.forward, 1, 0.1) << to_string(choice.method, one.ranks) << " forward";
      EXPECT_NEAR(choice.seconds.backward / took.backward, 1, 0.1) << to_string(choice.method, one.ranks) << " backward";
      best = std::min(best, took.total());
      if (choice.method == choices.best()) chosen = took.total();
    }
    EXPECT_LE(chosen, 1.1 * best) << choices.why;
  }
}

TEST(ContextChoice, SaysWhy) {
  const Case one{.ranks = 4, .heads = 6, .kv_heads = 6};
  const std::string why = choose_context(one.sizes(), {}, one.split(), one.links()).why;
  for (const char* part : {"ms a layer", "per pair", "50 Mbit/s", "6 heads cannot be divided over 4 ranks"})
    EXPECT_NE(why.find(part), std::string::npos) << why;
}

TEST(StandInForOut, HasTheRowSumsOfOut) {
  const at::Tensor dout = at::randn({2, 5, 3, 8}), out = at::randn({2, 5, 3, 8});
  dout.select(1, 1).zero_();
  dout.select(1, 2).mul_(1e-30);
  const at::Tensor sums = row_sums(dout, out), again = row_sums(dout, stand_in_for_out(dout, sums));
  EXPECT_TRUE(at::allclose(again, sums, 1e-5, 0));
  EXPECT_TRUE(at::isfinite(stand_in_for_out(dout, sums)).all().item<bool>());
}

}  // namespace
}  // namespace cairn::model
