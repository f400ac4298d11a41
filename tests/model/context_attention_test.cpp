// Attention over a sequence that ranks share out, against the kernel on the whole sequence.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "mesh/splits.h"
#include "model/context/attention.h"
#include "model/context/blockwise.h"

namespace cairn::model {
namespace {

using mesh::Interval;

struct Shape {
  int64_t length = 24, batch = 2, heads = 4, kv_heads = 2, head_dim = 6;
  at::ScalarType dtype = at::kDouble;
};

struct Masks {
  bool causal = true;
  int64_t window = 0;
  bool documents = false;
  double scale = 0;
};

// What one attention reads and what comes of it, of the whole sequence or of one rank's positions.
struct Tensors {
  at::Tensor q, k, v, dout, documents;
  at::Tensor out, lse, dq, dk, dv;
};

at::Tensor some_normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

// Documents of 5, 6, 7, ... tokens in one row, of 4, 5, 6, ... in the next.
at::Tensor some_documents(int64_t batch, int64_t length) {
  const at::Tensor documents = at::empty({batch, length}, at::kLong);
  for (int64_t row = 0; row < batch; ++row)
    for (int64_t at = 0, document = 100 * row, left = 5 - row % 4; at < length; ++at) {
      if (left-- == 0) ++document, left = 5 - row % 4 + document % 100;
      documents[row][at] = document;
    }
  return documents;
}

// Rooms for the results, full of nan; q, k, v and dq, dk, dv are slices of one buffer each.
Tensors with_rooms(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const auto parts = [&](const at::Tensor& fused) {
    return std::array{fused.narrow(2, 0, heads), fused.narrow(2, heads, kv_heads), fused.narrow(2, heads + kv_heads, kv_heads)};
  };
  Tensors t;
  const at::Tensor dqkv = at::full_like(qkv, std::numeric_limits<double>::quiet_NaN());
  std::tie(t.q, t.k, t.v) = std::tuple_cat(parts(qkv));
  std::tie(t.dq, t.dk, t.dv) = std::tuple_cat(parts(dqkv));
  t.out = at::full({qkv.size(0), qkv.size(1), heads, qkv.size(3)}, std::numeric_limits<double>::quiet_NaN(), qkv.options());
  const bool low = qkv.scalar_type() == at::kBFloat16;
  t.lse = at::full({qkv.size(0), heads, qkv.size(1)}, 7.0, low ? qkv.options().dtype(at::kFloat) : qkv.options());
  return t;
}

kernels::AttentionOptions options_of(const Masks& masks) { return {.scale = masks.scale, .causal = masks.causal, .window = masks.window}; }

// One problem, and what one rank makes of it.
struct Problem {
  Problem(const Shape& s, const Masks& m) : shape(s), masks(m) {
    qkv = some_normal({s.batch, s.length, s.heads + 2 * s.kv_heads, s.head_dim}, 1, s.dtype);
    whole = with_rooms(qkv, s.heads, s.kv_heads);
    whole.dout = some_normal(whole.out.sizes(), 2, s.dtype);
    kernels::AttentionOptions options = options_of(m);
    if (m.documents) {
      whole.documents = some_documents(s.batch, s.length);
      options.query_documents = options.key_documents = &whole.documents;
    }
    kernels::attention(whole.out, whole.lse, whole.q, whole.k, whole.v, options);
    kernels::attention_backward(whole.dq, whole.dk, whole.dv, whole.dout, whole.q, whole.k, whole.v, whole.out, whole.lse, options);
  }

  // What a coordinate computes of it.
  Tensors run(comm::Group& group, const ContextSplit& split, const ContextMethod& form, bool backward = true) const {
    const at::Tensor held = positions(split, group.rank());
    Tensors t = with_rooms(qkv.index_select(1, held), shape.heads, shape.kv_heads);
    t.dout = whole.dout.index_select(1, held);
    if (masks.documents) t.documents = whole.documents.index_select(1, held);
    const at::Tensor* documents = masks.documents ? &t.documents : nullptr;
    context_attention(t.out, t.lse, t.q, t.k, t.v, options_of(masks), documents, group, split, form);
    if (backward)
      context_attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.out, t.lse, options_of(masks), documents, group, split, form);
    return t;
  }

  static at::Tensor positions(const ContextSplit& split, int coordinate) {
    std::vector<at::Tensor> parts{at::empty({0}, at::kLong)};
    for (const Interval& piece : split.pieces[static_cast<size_t>(coordinate)]) parts.push_back(at::arange(piece.begin, piece.end));
    return at::cat(parts);
  }

  // Every result of this coordinate against its part of the whole's, to `times` the tolerance.
  void expect(const Tensors& t, const ContextSplit& split, int coordinate, const std::string& what, double times = 1) const {
    const at::Tensor held = positions(split, coordinate);
    const std::vector<std::tuple<const char*, at::Tensor, at::Tensor, int64_t>> results{{"out", t.out, whole.out, 1},
                                                                                        {"lse", t.lse, whole.lse, 2},
                                                                                        {"dq", t.dq, whole.dq, 1},
                                                                                        {"dk", t.dk, whole.dk, 1},
                                                                                        {"dv", t.dv, whole.dv, 1}};
    for (const auto& [name, found, all, dim] : results) {
      const at::Tensor expected = all.index_select(dim, held).to(at::kDouble);
      ASSERT_EQ(found.sizes(), expected.sizes()) << what << " " << name;
      if (expected.numel() == 0) continue;
      const double size = std::max(1.0, expected.abs().max().item<double>());
      const double error = (found.to(at::kDouble) - expected).abs().max().item<double>();
      EXPECT_LE(error, times * tolerance(found.scalar_type()) * size) << what << ": " << name << " at coordinate " << coordinate;
    }
  }

  static double tolerance(at::ScalarType dtype) {
    return dtype == at::kDouble ? 1e-11 : dtype == at::kFloat ? 1e-5 : 0x1p-7;  // bf16: one rounding, of 8 bits
  }

  Shape shape;
  Masks masks;
  at::Tensor qkv;
  Tensors whole;
};

ContextSplit zigzag(int64_t length, int parts) { return {length, mesh::split_zigzag(1, length, parts).pieces}; }

ContextSplit by_counts(const std::vector<int64_t>& counts) {
  return {std::accumulate(counts.begin(), counts.end(), int64_t{0}), mesh::split_by_counts(1, counts).pieces};
}

ContextSplit contiguous(int64_t length, int parts) {
  std::vector<int64_t> counts;
  for (int c = 0; c < parts; ++c) counts.push_back(mesh::even_part(length, parts, c).length());
  return by_counts(counts);
}

// The last coordinate has most, the one before nothing.
ContextSplit uneven(int64_t length, int parts) {
  std::vector<int64_t> counts(static_cast<size_t>(parts), 0);
  int64_t left = length;
  for (int c = 0; c + 2 < parts; ++c) left -= counts[static_cast<size_t>(c)] = std::min<int64_t>(left, 1 + 2 * c);
  counts.back() = left;
  return by_counts(counts);
}

// Chunks dealt out in turn, the later ones stored first.
ContextSplit dealt(int64_t length, int parts) {
  ContextSplit split{length, std::vector<std::vector<Interval>>(static_cast<size_t>(parts))};
  const int64_t chunk = std::max<int64_t>(1, length / 7);
  for (int64_t begin = 0, turn = 0; begin < length; begin += chunk, ++turn) {
    std::vector<Interval>& pieces = split.pieces[static_cast<size_t>(turn % parts)];
    pieces.insert(pieces.begin(), {begin, std::min(length, begin + chunk)});
  }
  return split;
}

std::map<std::string, ContextSplit> all_splits(int64_t length, int parts) {
  return {{"zigzag", zigzag(length, parts)},
          {"contiguous", contiguous(length, parts)},
          {"uneven", uneven(length, parts)},
          {"dealt", dealt(length, parts)}};
}

constexpr std::array kForms{ContextForm::gather, ContextForm::ring, ContextForm::ring_both_ways, ContextForm::token_ring};

// The forms, and where heads divide, ulysses and its products.
std::vector<ContextMethod> methods_for(int ranks, int64_t heads) {
  std::vector<ContextMethod> methods(kForms.begin(), kForms.end());
  if (heads % ranks == 0) methods.emplace_back(ContextForm::ulysses);
  for (int team = 2; team < ranks; ++team)
    if (ranks % team == 0 && heads % team == 0)
      for (const ContextForm form : kForms) methods.emplace_back(form, team);
  return methods;
}

void expect_as_whole(int ranks, const Problem& problem, const std::map<std::string, ContextSplit>& splits, harness::On on = {}) {
  harness::on_ranks(ranks, {.on = on}, [&](comm::World& world) {
    for (const auto& [name, split] : splits) {
      for (const ContextMethod& form : methods_for(ranks, problem.shape.heads)) {
        // Partial outputs of token_ring travel in the dtype of the queries, so that bf16 rounds twice.
        const double times = form.form == ContextForm::token_ring && problem.shape.dtype == at::kBFloat16 ? 2 : 1;
        problem.expect(problem.run(world.everyone(), split, form), split, world.rank(),
                       fmt::format("{} {} over {}", name, to_string(form, ranks), ranks), times);
      }
    }
  });
}

class ContextAttention : public testing::TestWithParam<int> {};

TEST_P(ContextAttention, EqualsAttentionOverTheWholeSequence) {
  const int ranks = GetParam();
  for (const Masks& masks : {Masks{}, Masks{.causal = false}, Masks{.window = 5}, Masks{.causal = false, .window = 9, .scale = 0.3},
                             Masks{.documents = true}, Masks{.causal = false, .documents = true}, Masks{.window = 4, .documents = true}}) {
    SCOPED_TRACE(fmt::format("causal {}, window {}, documents {}", masks.causal, masks.window, masks.documents));
    expect_as_whole(ranks, Problem({.length = 41}, masks), all_splits(41, ranks));
  }
}

TEST_P(ContextAttention, TakesSequencesShorterThanTheRanks) {
  for (const int64_t length : {1, 2, 3, 5})
    for (const bool documents : {false, true})
      expect_as_whole(GetParam(), Problem({.length = length, .batch = 1, .heads = 3, .kv_heads = 1}, {.documents = documents}),
                      all_splits(length, GetParam()));
}

TEST_P(ContextAttention, IsExactInFloatAndRoundsBfloatOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const Masks& masks : {Masks{.documents = true}, Masks{.window = 50}})
      expect_as_whole(GetParam(), Problem({.length = 131, .batch = 2, .heads = 6, .kv_heads = 3, .head_dim = 8, .dtype = dtype}, masks),
                      all_splits(131, GetParam()));
}

TEST_P(ContextAttention, SendsTheBytesThatTheHeaderSays) {
  const int n = GetParam();
  const Shape shape{.length = 10 * n + 3, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 3, .dtype = at::kBFloat16};
  for (const Masks& masks : {Masks{.documents = true}, Masks{.window = 7}, Masks{.causal = false}}) {
    const Problem problem(shape, masks);
    std::map<std::string, int64_t> sent, expected;  // by what was done
    std::mutex lock;
    const auto everything = [&](comm::World& world) {
      int64_t before = 0;
      const auto note = [&](const std::string& what) {
        const comm::Ledger::Total total = world.ledger().total();
        EXPECT_EQ(world.ledger().total(comm::Purpose::activation), total);
        const std::lock_guard guard(lock);
        sent[what] += total.bytes - std::exchange(before, total.bytes);
      };
      for (const auto& [name, split] : all_splits(shape.length, n))
        for (const ContextMethod& form : methods_for(n, shape.heads)) {
          const std::string what = fmt::format("{} {} over {}, window {}", name, to_string(form, n), n, masks.window);
          problem.run(world.everyone(), split, form, /*backward=*/false);
          note(what);
          problem.run(world.everyone(), split, form);
          note(what + ", with backward");
        }
    };
    harness::on_ranks(n, everything);
    for (const auto& [name, split] : all_splits(shape.length, n))
      for (const ContextMethod& form : methods_for(n, shape.heads)) {
        const std::string what = fmt::format("{} {} over {}, window {}", name, to_string(form, n), n, masks.window);
        const ContextBytes bytes =
            context_bytes({shape.batch, shape.kv_heads, shape.head_dim, 2, masks.documents, shape.heads}, options_of(masks), split, form);
        expected[what] = bytes.forward;
        expected[what + ", with backward"] = bytes.forward + bytes.backward;
      }
    EXPECT_EQ(sent, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextAttention, testing::Values(1, 2, 3, 4, 5, 8));

TEST(ContextAttentionBytes, FollowTheFormulas) {
  const int64_t n = 4, length = 64, whole = 2 * 2 * length * 3 * 5 * 2, documents = 2 * length * 8;  // keys and values in bf16
  const ContextSizes sizes{.batch = 2, .kv_heads = 3, .head_dim = 5, .element_bytes = 2};
  ContextSizes with_documents = sizes;
  with_documents.documents = true;
  for (const ContextForm form : {ContextForm::gather, ContextForm::ring}) {
    const ContextBytes all{(n - 1) * whole, (n - 1) * 3 * whole};
    EXPECT_EQ(context_bytes(sizes, {}, zigzag(length, n), form), all);
    EXPECT_EQ(context_bytes(sizes, {.causal = false}, contiguous(length, n), form), all);
    EXPECT_EQ(context_bytes(with_documents, {}, zigzag(length, n), form),
              (ContextBytes{(n - 1) * (whole + documents), (n - 1) * (3 * whole + documents)}));
  }
  EXPECT_EQ(context_bytes(sizes, {}, contiguous(length, n), ContextForm::ring),
            (ContextBytes{(n - 1) * whole / 2, (n - 1) * 3 * whole / 2}));  // only to those behind which they lie
  EXPECT_EQ(context_bytes(sizes, {.window = 10}, contiguous(length, n), ContextForm::ring),
            (ContextBytes{(n - 1) * whole / n, (n - 1) * 3 * whole / n}));  // only to the neighbour
}

TEST(ContextAttentionBytes, AreSharedByTheRanksOfAnEvenSplit) {
  const Problem problem({.length = 32}, {});
  for (const ContextForm form : {ContextForm::gather, ContextForm::ring}) {
    const harness::Run run = harness::on_ranks(4, [&](comm::World& world) { problem.run(world.everyone(), zigzag(32, 4), form, false); });
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(run.ledger.bytes_sent(rank, comm::Purpose::activation), 3 * (2 * 2 * 8 * 2 * 6 * 8)) << to_string(form, 4);
  }
}

TEST(ContextAttentionOnSockets, GivesTheSame) {
  for (const Masks& masks : {Masks{.documents = true}, Masks{.window = 6}})
    expect_as_whole(3, Problem({.length = 300, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 64, .dtype = at::kFloat}, masks),
                    all_splits(300, 3), harness::On::net);
}

// The coordinate is the rank in the group, whatever the rank in the world.
TEST(ContextAttentionGroups, WorkBesideEachOther) {
  const Problem problem({.length = 17}, {.documents = true});
  const ContextSplit split = zigzag(17, 2);
  harness::on_ranks(4, [&](comm::World& world) {
    comm::Group& group = world.group(world.rank() % 2 == 0 ? std::vector{2, 0} : std::vector{1, 3});
    for (const ContextForm form : kForms)
      problem.expect(problem.run(group, split, form), split, group.rank(), to_string(form, group.size()));
  });
}

// New queries at the end, or in the middle, of keys that ranks keep; some ranks have none.
TEST(ContextAttentionOverCache, EqualsAttentionOverTheWholeCache) {
  for (const int ranks : {1, 2, 3, 4, 5})
    for (const Masks& masks : {Masks{}, Masks{.window = 6}, Masks{.causal = false}})
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{36, 5}, {20, 9}, {40, 1}}) {
        const Problem problem({.length = 41}, masks);
        ContextSplit queries = contiguous(count, ranks);
        queries.length = 41;
        for (auto& pieces : queries.pieces)
          for (Interval& piece : pieces) piece = {piece.begin + begin, piece.end + begin};
        harness::on_ranks(ranks, [&](comm::World& world) {
          for (const auto& [name, keys] : all_splits(41, ranks))
            for (const ContextForm form : kForms) {
              const at::Tensor asking = Problem::positions(queries, world.rank()), held = Problem::positions(keys, world.rank());
              const at::Tensor q = problem.whole.q.index_select(1, asking), k = problem.whole.k.index_select(1, held),
                               v = problem.whole.v.index_select(1, held), out = at::full(q.sizes(), 7.0, q.options()),
                               lse = at::full({q.size(0), q.size(2), q.size(1)}, 7.0, q.options());
              context_attention_over_cache(out, lse, q, k, v, options_of(masks), world.everyone(), queries, keys, form);
              EXPECT_TRUE(at::allclose(out, problem.whole.out.index_select(1, asking), 1e-11, 1e-11))
                  << name << " " << to_string(form, ranks) << " over " << ranks;
              EXPECT_TRUE(at::allclose(lse, problem.whole.lse.index_select(2, asking), 1e-11, 1e-11));
            }
        });
      }
}

TEST(ContextSplit, JoinsPiecesThatTouch) {
  EXPECT_EQ(segments(zigzag(12, 3), 2), (std::vector<Segment>{{{4, 8}, 0}}));
  EXPECT_EQ(segments(zigzag(12, 3), 1), (std::vector<Segment>{{{2, 4}, 0}, {{8, 10}, 2}}));
  EXPECT_EQ(segments({6, {{{4, 6}, {0, 0}, {0, 4}}}}, 0), (std::vector<Segment>{{{4, 6}, 0}, {{0, 4}, 2}}));
}

TEST(ContextSplit, TellsWhatAQueryMaySee) {
  EXPECT_EQ(seen_keys({}, {4, 6}, 10), (Interval{0, 6}));
  EXPECT_EQ(seen_keys({.window = 3}, {4, 6}, 10), (Interval{2, 6}));
  EXPECT_EQ(seen_keys({.causal = false, .window = 3}, {1, 6}, 10), (Interval{0, 10}));
  const ContextSplit split = contiguous(12, 3);
  EXPECT_TRUE(sees(split, {}, 2, 0));
  EXPECT_FALSE(sees(split, {}, 0, 1));
  EXPECT_TRUE(sees(split, {.window = 6}, 2, 0));
  EXPECT_FALSE(sees(split, {.window = 5}, 2, 0));
}

TEST(ContextFold, LeavesNothingWhereNoKeyCame) {
  const at::Tensor q = at::ones({1, 3, 2, 4}), out = at::ones({1, 3, 2, 4}), lse = at::ones({1, 2, 3});
  ContextForward(q, {{{{0, 3}, 0}}, 3, {}, {}}).finish(out, lse);
  EXPECT_EQ(out.abs().max().item<float>(), 0);
  EXPECT_EQ(lse.max().item<float>(), -std::numeric_limits<float>::infinity());
}

// Blocks of other documents, one after the other, before the one that is seen.
TEST(ContextFold, MergesBlocksOfWhichNothingIsSeen) {
  const at::Tensor q = some_normal({1, 4, 1, 4}, 3, at::kFloat), documents = at::full({1, 4}, 5, at::kLong);
  ContextForward forward(q, {{{{8, 12}, 0}}, 12, {}, documents});
  const at::Tensor both = some_normal({4, 1, 2, 1, 4}, 4, at::kFloat);
  int calls = 0;
  const auto add = [&](int64_t begin, int64_t document) {
    forward.add({both, at::full({4, 1}, document, at::kLong), {{{begin, begin + 4}, 0}}}, [&](double) { ++calls; });
  };
  const at::Tensor out = at::empty_like(q), lse = at::empty({1, 1, 4}), expected = at::empty_like(q), expected_lse = at::empty_like(lse);
  add(0, 1), add(4, 2);
  forward.finish(out, lse);
  EXPECT_EQ(out.abs().max().item<float>(), 0);
  EXPECT_EQ(lse.max().item<float>(), -std::numeric_limits<float>::infinity());
  add(8, 5);
  forward.finish(out, lse);
  kernels::attention(expected, expected_lse, q, both.select(2, 0).transpose(0, 1), both.select(2, 1).transpose(0, 1), {});
  EXPECT_TRUE(at::allclose(out, expected, 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(lse, expected_lse, 1e-6, 1e-6));
  add(12, 5);  // later than every query
  EXPECT_EQ(calls, 3);
}

std::string context_refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ContextSplit, IsRefusedWhereItDoesNotFit) {
  const auto expect = [](const ContextSplit& split, int parts, const std::string& text) {
    const std::string message = context_refusal([&] { check(split, parts); });
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect(contiguous(12, 3), 2, "a context split for 3 ranks among 2");
  expect({6, {{{0, 3}}, {{2, 6}}}}, 2, "begins at 2 where the pieces before it end at 3");
  expect({6, {{{0, 3}}, {{3, 5}}}}, 2, "of 6 positions whose pieces end at 5");
  expect({6, {{{3, 0}}, {{3, 5}}}}, 2, "the piece [3:0]");
}

TEST(ContextAttentionRefusal, NamesTheCoordinateWhosePositionsAreWrong) {
  harness::on_ranks(2, [](comm::World& world) {
    const at::Tensor q = at::ones({1, 4, 1, 2}), lse = at::ones({1, 1, 4});
    const std::string text =
        context_refusal([&] { context_attention(q, lse, q, q, q, {}, nullptr, world.everyone(), contiguous(10, 2), ContextForm::ring); });
    EXPECT_NE(text.find(fmt::format("coordinate {} along cp holds 5 positions of 10, but hands in 4 queries", world.rank())),
              std::string::npos)
        << text;
    const at::Tensor documents = at::zeros({1, 3}, at::kLong);
    EXPECT_NE(context_refusal([&] {
                context_attention(q, lse, q, q, q, {}, &documents, world.everyone(), contiguous(8, 2), ContextForm::gather);
              }).find("documents [1, 3]"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace cairn::model
