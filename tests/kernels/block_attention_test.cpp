#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <ostream>

#include "kernels/attention.h"
#include "kernels/block_pattern.h"
#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

struct BlockCase {
  int64_t batch, q_len, k_len, heads, kv_heads, head_dim;  // of this call
  BlockPattern pattern;
  int64_t query_offset = 0, key_offset = 0;
  int64_t first_kv_head = 0;
  int64_t documents = 0;
};
std::ostream& operator<<(std::ostream& out, const BlockCase& c) {
  return out << c.batch << " x " << c.q_len << " on " << c.k_len << ", heads " << c.heads << "/" << c.kv_heads << " of " << c.head_dim
             << ", blocks of " << c.pattern.block << ", window " << c.pattern.local_blocks << ", stride " << c.pattern.stride
             << ", offsets " << c.query_offset << " " << c.key_offset << ", first head " << c.first_kv_head << ", documents "
             << c.documents;
}

// An irregular pattern: block j is shown to row i where the two numbers' product has few bits, and on the diagonal.
std::shared_ptr<const BlockTable> irregular_table(int64_t heads, int64_t blocks) {
  BlockTable table{.heads = heads, .blocks = blocks, .seen = {}};
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < blocks; ++i)
      for (int64_t j = 0; j < blocks; ++j) table.seen.push_back(j == i || (j < i && (i * j + h) % 3 == 0) ? 1 : 0);
  return std::make_shared<const BlockTable>(table);
}

std::vector<BlockCase> cases() {
  const BlockPattern eight{.block = 16, .local_blocks = 2, .stride = 3, .kv_heads = 8};
  return {
      {1, 1, 1, 1, 1, 8, {.block = 16, .local_blocks = 1, .stride = 1, .kv_heads = 1}},
      {1, 64, 64, 2, 2, 64, {.block = 64, .local_blocks = 1, .stride = 2, .kv_heads = 2}},
      {2, 97, 97, 3, 3, 20, {.block = 16, .local_blocks = 1, .stride = 3, .kv_heads = 3}},
      {1, 1000, 1000, 4, 2, 32, {.block = 64, .local_blocks = 2, .stride = 2, .kv_heads = 2}},
      {1, 1000, 1000, 2, 2, 33, {.block = 32, .local_blocks = 3, .stride = 5, .kv_heads = 2}},
      {1, 700, 700, 4, 4, 16, {.block = 128, .local_blocks = 1, .stride = 4, .kv_heads = 4}},
      {1, 500, 500, 4, 4, 16, {.block = 16, .local_blocks = 4, .stride = 4, .kv_heads = 4, .dense_heads = 1}},
      {1, 333, 333, 2, 1, 24, {.block = 16, .local_blocks = 1, .stride = 7, .phase_offset = 3, .kv_heads = 1}},
      // Two ranges, as in the published kernel library: every block nearby and every third beyond; every second nearby.
      {1, 400, 400, 3, 3, 16, {.block = 16, .local_blocks = 2, .stride = 3, .kv_heads = 3}},
      {1, 400, 400, 3, 3, 16, {.block = 16, .local_blocks = 3, .stride = 3, .near_stride = 2, .kv_heads = 3}},
      {1, 400, 400, 4, 4, 16, {.block = 32, .local_blocks = 2, .stride = 4, .kv_heads = 4, .homogeneous = true}},
      {1, 300, 300, 4, 2, 40, {.block = 16, .kv_heads = 2, .table = irregular_table(2, 19)}},
      {1, 300, 300, 2, 2, 40, {.block = 64, .kv_heads = 2, .table = irregular_table(1, 5)}},
      // A part of the sequence: queries of a chunk over earlier keys, over themselves, over a chunk far behind.
      {1, 160, 480, 8, 8, 16, eight, 320, 0},
      {1, 150, 160, 8, 8, 16, eight, 320, 320},
      {1, 160, 160, 8, 8, 16, eight, 480, 64},
      {1, 160, 240, 8, 8, 16, eight, 32, 96},  // some queries see no key
      // A part of the heads, as tensor parallelism holds them.
      {1, 200, 200, 6, 3, 16, eight, 0, 0, 5},
      {2, 333, 333, 4, 4, 16, {.block = 16, .local_blocks = 2, .stride = 4, .kv_heads = 4}, 0, 0, 0, 4},
      {2, 300, 300, 4, 2, 32, {.block = 64, .local_blocks = 1, .stride = 2, .kv_heads = 2}, 0, 0, 0, 3},
      // Decoding: few queries anywhere.
      {2, 1, 178, 4, 2, 16, {.block = 16, .local_blocks = 2, .stride = 2, .kv_heads = 2}, 177, 0},
      {1, 3, 180, 2, 2, 16, {.block = 16, .local_blocks = 1, .stride = 2, .kv_heads = 2}, 177, 0, 0, 2},
      {1, 4096, 4096, 2, 2, 16, {.block = 64, .local_blocks = 4, .stride = 8, .kv_heads = 2}},
  };
}

// The pattern from its definition in words, without the product's code: does head a show key position j to query position i?
bool shown(const BlockPattern& p, int64_t head, int64_t i, int64_t j) {
  if (j > i) return false;
  const int64_t row = i / p.block, column = j / p.block;
  if (p.table)
    return p.table->seen[static_cast<size_t>(((p.table->heads == 1 ? 0 : head) * p.table->blocks + row) * p.table->blocks + column)];
  if (column == row || head + p.dense_heads >= p.kv_heads) return true;
  const int64_t shifted = column + (p.homogeneous ? 0 : head * p.phase_step) + p.phase_offset;
  return row - column < p.local_blocks ? shifted % p.near_stride == 0 : shifted % p.stride == 0;
}

struct BlockInputs {
  at::Tensor q, k, v, dout, query_documents, key_documents;
  AttentionOptions options;

  explicit BlockInputs(const BlockCase& c)
      : q(normal({c.batch, c.q_len, c.heads, c.head_dim}, 1)),
        k(normal({c.batch, c.k_len, c.kv_heads, c.head_dim}, 2)),
        v(normal({c.batch, c.k_len, c.kv_heads, c.head_dim}, 3)),
        dout(normal({c.batch, c.q_len, c.heads, c.head_dim}, 4)) {
    options = {.query_offset = c.query_offset, .key_offset = c.key_offset, .pattern = &c.pattern, .first_kv_head = c.first_kv_head};
    if (c.documents == 0) return;
    const at::Tensor ids = std::get<0>(integers(0, c.documents, {c.batch, c.k_len}, 5).sort(1)) * 1000000007;
    key_documents = ids.contiguous();
    query_documents = ids.narrow(1, c.query_offset, c.q_len).contiguous();
    options.query_documents = &query_documents, options.key_documents = &key_documents;
  }
};

struct Expected {
  at::Tensor out, lse, dq, dk, dv;
};

// Masked softmax attention in double with its gradients from autograd, some queries at a time.
Expected expected_of(const BlockCase& c, const BlockInputs& in) {
  constexpr int64_t kRows = 512;
  const at::Tensor k = leaf(in.k), v = leaf(in.v);
  Expected e{.out = {}, .lse = {}, .dq = {}, .dk = at::zeros_like(k), .dv = at::zeros_like(v)};
  std::vector<at::Tensor> out, lse, dq;
  const int64_t group = c.heads / c.kv_heads;
  for (int64_t begin = 0; begin < c.q_len; begin += kRows) {
    const int64_t rows = std::min(kRows, c.q_len - begin);
    const at::Tensor q = leaf(in.q.narrow(1, begin, rows));
    at::Tensor seen = at::zeros({1, c.kv_heads, rows, c.k_len}, at::kBool);
    bool* at_seen = seen.mutable_data_ptr<bool>();
    for (int64_t h = 0; h < c.kv_heads; ++h)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < c.k_len; ++j, ++at_seen)
          *at_seen = shown(c.pattern, c.first_kv_head + h, c.query_offset + begin + i, c.key_offset + j);
    seen = seen.repeat_interleave(group, 1);
    if (c.documents > 0) {
      const at::Tensor ids = in.query_documents.narrow(1, begin, rows);
      seen = seen & (ids.unsqueeze(2) == in.key_documents.unsqueeze(1)).unsqueeze(1);
    }
    const at::Tensor scores =
        at::einsum("bihd,bjhd->bhij", {q, k.repeat_interleave(group, 2)}) / std::sqrt(static_cast<double>(c.head_dim));
    const at::Tensor exponentials = at::exp(scores) * seen.to(at::kDouble), sums = exponentials.sum(3, true);
    const at::Tensor part =
        at::einsum("bhij,bjhd->bihd", {exponentials / (sums + (sums == 0).to(at::kDouble)), v.repeat_interleave(group, 2)});
    const std::vector<at::Tensor> found = gradients(part, in.dout.narrow(1, begin, rows), {q, k, v});
    out.push_back(part.detach()), lse.push_back(at::log(sums).squeeze(3).detach()), dq.push_back(found[0]);
    e.dk += found[1], e.dv += found[2];
  }
  e.out = at::cat(out, 1), e.lse = at::cat(lse, 2), e.dq = at::cat(dq, 1);
  return e;
}

TEST(BlockAttention, ForwardAndGradientsAreThoseOfTheTokenMask) {
  for (const BlockCase& c : cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const BlockInputs in(c);
    const Expected e = expected_of(c, in);
    with_threads([&] {
      const at::Tensor out = at::full_like(in.q, 7.0f), lse = at::empty({c.batch, c.heads, c.q_len});
      attention(out, lse, in.q, in.k, in.v, in.options);
      expect_close(out, e.out, 48, "out");
      expect_close(lse, e.lse, 48, "lse");
      if (c.query_offset % c.pattern.block != 0) return;  // decoding has no gradients
      const at::Tensor dq = at::full_like(in.q, 7.0f), dk = at::full_like(in.k, 7.0f), dv = at::full_like(in.v, 7.0f);
      attention_backward(dq, dk, dv, in.dout, in.q, in.k, in.v, out, lse, in.options);
      expect_close(dq, e.dq, 128, "dq");
      expect_close(dk, e.dk, 128, "dk");
      expect_close(dv, e.dv, 128, "dv");
    });
  }
}

TEST(BlockAttention, TheReferenceInDoubleIsExact) {
  const std::vector<BlockCase> all = cases();
  for (const BlockCase& c : {all[2], all[9], all[11], all[15], all[17]}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const BlockInputs in(c);
    const Expected e = expected_of(c, in);
    const at::Tensor q = wide(in.q), k = wide(in.k), v = wide(in.v), out = at::empty_like(q), dq = at::empty_like(q),
                     dk = at::empty_like(k), dv = at::empty_like(v), lse = at::empty({c.batch, c.heads, c.q_len}, at::kDouble);
    attention(out, lse, q, k, v, in.options);
    attention_backward(dq, dk, dv, wide(in.dout), q, k, v, out, lse, in.options);
    expect_close(out, e.out, 64, "out");
    expect_close(dq, e.dq, 256, "dq");
    expect_close(dk, e.dk, 256, "dk");
    expect_close(dv, e.dv, 256, "dv");
  }
}

TEST(BlockAttention, AWindowAsLongAsTheSequenceIsPlainCausalAttention) {
  const BlockPattern pattern{.block = 64, .local_blocks = 5, .stride = 8, .kv_heads = 2};
  const at::Tensor q = normal({1, 320, 4, 32}, 1), k = normal({1, 320, 2, 32}, 2), v = normal({1, 320, 2, 32}, 3);
  const at::Tensor out = at::empty_like(q), plain = at::empty_like(q), lse = at::empty({1, 4, 320}), plain_lse = at::empty({1, 4, 320});
  attention(out, lse, q, k, v, {.pattern = &pattern});
  attention(plain, plain_lse, q, k, v, {});
  expect_close(out, wide(plain), 8, "out");
  expect_close(lse, wide(plain_lse), 8, "lse");
}

// What a masked dense kernel would fail: keys and values in blocks that no query sees are never touched.
TEST(BlockAttention, BlocksThatNoQuerySeesAreNotRead) {
  const BlockPattern pattern{.block = 16, .local_blocks = 2, .stride = 4, .kv_heads = 2};
  const int64_t length = 640, begin = 512;
  const at::Tensor q = normal({1, length - begin, 2, 16}, 1), k = normal({1, length, 2, 16}, 2), v = normal({1, length, 2, 16}, 3);
  const at::Tensor out = at::empty_like(q), clean = at::empty_like(q), lse = at::empty({1, 2, length - begin});
  const AttentionOptions options{.query_offset = begin, .pattern = &pattern};
  attention(clean, lse, q, k, v, options);
  int64_t poisoned = 0;
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t j = 0; j < begin / 16 - 1; ++j)
      if ((j + h) % 4 != 0) {
        for (const at::Tensor* x : {&k, &v}) x->select(2, h).narrow(1, j * 16, 16).fill_(std::numeric_limits<float>::quiet_NaN());
        ++poisoned;
      }
  ASSERT_GT(poisoned, 40);
  with_threads([&] {
    attention(out, lse, q, k, v, options);
    EXPECT_TRUE(at::equal(out, clean));
    const at::Tensor dq = at::empty_like(q), dk = at::full_like(k, 7.0f), dv = at::full_like(v, 7.0f);
    attention_backward(dq, dk, dv, q, q, k, v, out, lse, options);
    EXPECT_TRUE(at::isfinite(dq).all().item<bool>());
    EXPECT_TRUE(at::isfinite(dk).all().item<bool>()) << "unseen keys get gradient 0";
    EXPECT_TRUE(at::isfinite(dv).all().item<bool>());
    EXPECT_EQ(dk.select(2, 0).narrow(1, 16, 16).abs().max().item<float>(), 0);
  });
}

TEST(BlockPattern, EightPhasesTogetherSeeEveryPosition) {
  const BlockPattern pattern{.block = 64, .local_blocks = 4, .stride = 8, .kv_heads = 8};
  const int64_t blocks = 128;
  for (int64_t column = 0; column < blocks; ++column) {
    bool covered = false;
    for (int64_t head = 0; head < 8; ++head) covered = covered || pattern.sees(head, blocks - 1, column);
    EXPECT_TRUE(covered) << "block " << column;
  }
  EXPECT_TRUE(uncovered_remainders(pattern).empty());

  BlockPattern same = pattern;
  same.homogeneous = true;
  int64_t covered = 0;
  for (int64_t column = 0; column < blocks; ++column)
    for (int64_t head = 0; head < 8; ++head)
      if (same.sees(head, blocks - 1, column)) {
        ++covered;
        break;
      }
  EXPECT_EQ(covered, 4 + 16);  // the window, and one in eight of the 124 blocks before it
  EXPECT_EQ(uncovered_remainders(same).size(), 7u);

  BlockPattern four = pattern;
  four.kv_heads = 4;  // phases 0 to 3: blocks whose number is 0, 7, 6 or 5 mod 8
  EXPECT_EQ(uncovered_remainders(four), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(BlockPattern, ABlockOutOfSightStaysOutOfSightWhereNearbyBlocksAreAllSeen) {
  EXPECT_TRUE(drops_for_good({.block = 16, .local_blocks = 3, .stride = 4, .kv_heads = 4}, 30));
  EXPECT_FALSE(drops_for_good({.block = 16, .local_blocks = 3, .stride = 3, .near_stride = 2, .kv_heads = 3}, 30));
  EXPECT_FALSE(drops_for_good({.block = 16, .kv_heads = 2, .table = irregular_table(2, 12)}, 12));
}

// Every seen pair of positions lies in exactly one pair of the lists, whose row bits show it, by panel and by tile.
TEST(BlockPattern, ThePairsOfACallAreThoseThatAreSeen) {
  for (const int64_t block : {16, 32, 64, 128}) {
    SCOPED_TRACE(block);
    const BlockPattern pattern{.block = block, .local_blocks = 2, .stride = 3, .kv_heads = 6, .dense_heads = 1};
    const BlockSpan span{.query_offset = 3 * block, .queries = 700, .key_offset = block, .keys = 730, .first_head = 3, .heads = 3};
    const BlockPairs pairs = block_pairs(pattern, span);
    ASSERT_EQ(pairs.heads, 3);
    for (int64_t h = 0; h < span.heads; ++h) {
      std::vector<std::array<int64_t, 3>> by_panel, by_tile, expected;
      for (int64_t p = 0; p < pairs.panels; ++p) {
        const auto at = static_cast<size_t>(h * (pairs.panels + 1) + p);
        for (int32_t e = pairs.panel_starts[at]; e < pairs.panel_starts[at + 1]; ++e)
          by_panel.push_back(
              {p, pairs.of_panel[static_cast<size_t>(e)] >> BlockPairs::kRowBits, pairs.of_panel[static_cast<size_t>(e)] & 15});
        for (int64_t t = 0; t < pairs.tiles; ++t) {
          int64_t rows = 0;
          for (int64_t i = p * 64; i < std::min<int64_t>(span.queries, (p + 1) * 64); ++i) {
            const int64_t query = span.query_offset + i, key = span.key_offset + t * pairs.tile_keys;
            const int64_t bit = query / block - (span.query_offset + p * 64) / block;
            if (key <= query && pattern.sees(span.first_head + h, query / block, key / block)) rows |= 1 << bit;
          }
          if (rows != 0) expected.push_back({p, t, rows});
        }
      }
      for (int64_t t = 0; t < pairs.tiles; ++t) {
        const auto at = static_cast<size_t>(h * (pairs.tiles + 1) + t);
        for (int32_t e = pairs.tile_starts[at]; e < pairs.tile_starts[at + 1]; ++e)
          by_tile.push_back({pairs.of_tile[static_cast<size_t>(e)] >> BlockPairs::kRowBits, t, pairs.of_tile[static_cast<size_t>(e)] & 15});
      }
      std::sort(by_tile.begin(), by_tile.end());
      EXPECT_EQ(by_panel, expected);
      EXPECT_EQ(by_tile, expected);
    }
  }
}

TEST(BlockPattern, CountsItsPairs) {
  // 128 blocks, window 4, stride 8: what a kernel visits is 5.6 times less than dense causal attention.
  const BlockPattern pattern{.block = 64, .local_blocks = 4, .stride = 8, .kv_heads = 8};
  const double dense = 8.0 * 128 * 129 / 2;
  EXPECT_NEAR(dense / static_cast<double>(seen_pairs(pattern, 128)), 5.6, 0.15);
}

}  // namespace
}  // namespace cairn::kernels
