// Linear attention over a sequence that is cut over ranks, against the recurrence on the whole sequence.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/context/linear_attention.h"

namespace cairn::model {
namespace {

at::Tensor some_normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

struct Setting {
  std::vector<int64_t> cuts;  // tokens of each rank
  at::ScalarType dtype = at::kDouble;
  double decay = -0.05;  // mean of g; 0: none
  std::vector<int64_t> starts = {};
  LinearForm form = LinearForm::zeco;
  int64_t blocks = 0;
  StateDtype travels = StateDtype::fp32;
  int64_t batch = 2, heads = 2, key_dim = 8, value_dim = 12;

  int ranks() const { return static_cast<int>(cuts.size()); }
  int64_t length() const { return std::accumulate(cuts.begin(), cuts.end(), int64_t{0}); }
  int64_t begin(int rank) const { return std::accumulate(cuts.begin(), cuts.begin() + rank, int64_t{0}); }
};

struct Whole {
  kernels::LinearAttention on;
  at::Tensor documents, dout;
  at::Tensor out, dq, dk, dv, dg;  // of the recurrence in double
};

Whole make_whole(const Setting& s) {
  Whole w;
  const std::vector<int64_t> keys{s.batch, s.length(), s.heads, s.key_dim}, values{s.batch, s.length(), s.heads, s.value_dim};
  w.on = {some_normal(keys, 1, s.dtype), some_normal(keys, 2, s.dtype), some_normal(values, 3, s.dtype)};
  w.on.chunk = 16;
  if (s.decay != 0) w.on.log_decay = some_normal(keys, 4, s.dtype).abs() * (1.2533 * s.decay);
  w.dout = some_normal(values, 5, s.dtype);
  if (!s.starts.empty()) {
    w.documents = at::zeros({s.batch, s.length()}, at::kLong);
    w.on.starts = at::zeros({s.batch, s.length()}, at::kBool);
    for (const int64_t start : s.starts) w.documents.slice(1, start) += 1, w.on.starts.select(1, start).fill_(true);
  }
  kernels::LinearAttention plain = w.on;
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).clone().set_requires_grad(true); };
  plain.q = leaf(w.on.q), plain.k = leaf(w.on.k), plain.v = leaf(w.on.v);
  std::vector<at::Tensor> inputs{plain.q, plain.k, plain.v};
  if (s.decay != 0) inputs.push_back(plain.log_decay = leaf(w.on.log_decay));
  const at::Tensor out = kernels::reference::linear_attention(plain).out;
  const auto d = torch::autograd::grad({out}, inputs, {w.dout.to(at::kDouble)});
  w.out = out.detach(), w.dq = d[0], w.dk = d[1], w.dv = d[2];
  if (s.decay != 0) w.dg = d[3];
  return w;
}

// What one rank makes of its slice. `forget_state`: backward is told that nothing came in (a known bug of such layers).
struct Shard {
  at::Tensor out, dq, dk, dv, dg;
};
Shard run_slice(const Setting& s, const Whole& w, comm::Group* group, int rank, bool forget_state = false) {
  const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(1, s.begin(rank), s.cuts[rank]) : x; };
  kernels::LinearAttention on{part(w.on.q), part(w.on.k), part(w.on.v), part(w.on.log_decay)};
  on.chunk = w.on.chunk;
  if (w.documents.defined())
    on.starts = document_starts(part(w.documents), s.begin(rank) > 0 ? w.documents.select(1, s.begin(rank) - 1) : at::Tensor());
  const LinearContext context{group, s.form, s.blocks, s.travels, {}};
  Shard r{at::full_like(on.v, 7), at::full_like(on.q, 7), at::full_like(on.k, 7), at::full_like(on.v, 7), {}};
  if (s.decay != 0) r.dg = at::full(on.q.sizes(), 7, on.q.options());
  const LinearBorders borders = linear_attention(r.out, on, context);
  linear_attention_backward({r.dq, r.dk, r.dv}, r.dg, on, part(w.dout), forget_state ? at::Tensor() : borders.initial, context);
  return r;
}

double error(const at::Tensor& found, const at::Tensor& expected) {
  if (found.numel() == 0) return 0;
  return ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

// Relative errors by rank: the largest over its tensors.
std::vector<double> errors(const Setting& s, bool forget_state = false, harness::Run* run = nullptr) {
  const Whole w = make_whole(s);
  std::vector<double> worst(s.cuts.size());
  const harness::Run done = harness::on_ranks(s.ranks(), [&](comm::World& world) {
    const int rank = world.rank();
    const Shard found = run_slice(s, w, &world.everyone(), rank, forget_state);
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, s.begin(rank), s.cuts[rank]); };
    double& most = worst[static_cast<size_t>(rank)];
    most = std::max({error(found.out, part(w.out)), error(found.dq, part(w.dq)), error(found.dk, part(w.dk)), error(found.dv, part(w.dv))});
    if (found.dg.defined()) most = std::max(most, error(found.dg, part(w.dg)));
  });
  if (run) *run = done;
  return worst;
}

void expect_exact(const Setting& s) {
  const std::vector<double> found = errors(s);
  for (int rank = 0; rank < s.ranks(); ++rank)
    EXPECT_LE(found[static_cast<size_t>(rank)], s.dtype == at::kDouble ? 1e-9 : 1e-5)
        << "rank " << rank << " of " << s.ranks() << ", form " << static_cast<int>(s.form) << ", decay " << s.decay;
}

// No cut is a multiple of the chunk of 16.
const std::vector<std::vector<int64_t>> kCuts{{75}, {37, 38}, {21, 50, 4}, {10, 20, 17, 1, 27}, {9, 9, 9, 9, 9, 10, 10, 10}};

TEST(LinearAttentionContext, GivesTheRecurrenceOfTheWholeSequenceOnEveryRank) {
  for (const auto& cuts : kCuts)
    for (const LinearForm form : {LinearForm::zeco, LinearForm::lasp1, LinearForm::lasp2})
      for (const double decay : {0.0, -0.05, -2.0})
        for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
          expect_exact({.cuts = cuts, .dtype = dtype, .decay = decay, .form = form});
}

TEST(LinearAttentionContext, GivesTheSameForEveryNumberOfBlocks) {
  for (const int64_t blocks : {1, 3, 16}) expect_exact({.cuts = kCuts[3], .blocks = blocks});
}

// A document starts inside a slice, on its first token (10, 30), on its last one (46), and one covers a whole slice and more.
TEST(LinearAttentionContext, DocumentsThatCrossRanksAndStartAtTheirBordersAreExact) {
  for (const std::vector<int64_t>& starts : {std::vector<int64_t>{10}, {5, 30}, {46, 47, 60}, {12, 74}})
    for (const LinearForm form : {LinearForm::zeco, LinearForm::lasp1, LinearForm::lasp2})
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
        expect_exact({.cuts = kCuts[3], .dtype = dtype, .starts = starts, .form = form});
}

TEST(LinearAttentionContext, RanksWithoutTokensHandTheStateOn) {
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{20, 0, 30}, {0, 50}, {30, 20, 0}})
    for (const LinearForm form : {LinearForm::zeco, LinearForm::lasp1, LinearForm::lasp2}) {
      expect_exact({.cuts = cuts, .form = form});
      expect_exact({.cuts = cuts, .starts = {20, 30}, .form = form});
    }
}

// Rounded once for each rank that a state passes through, so the error is that of bf16, and only of ranks after the first.
TEST(LinearAttentionContext, StatesThatTravelAsBf16AreOffByItsRoundingAndHalfAsLarge) {
  for (const LinearForm form : {LinearForm::zeco, LinearForm::lasp1, LinearForm::lasp2}) {
    Setting s{.cuts = kCuts[4], .dtype = at::kFloat, .form = form, .blocks = 3};
    harness::Run wide, narrow;
    errors(s, false, &wide);
    s.travels = StateDtype::bf16;
    const std::vector<double> found = errors(s, false, &narrow);
    for (const double one : found) EXPECT_LE(one, 0.05) << static_cast<int>(form);
    EXPECT_GE(found.back(), 1e-5) << "nothing was rounded";
    for (int rank = 0; rank < s.ranks(); ++rank)
      EXPECT_EQ(2 * narrow.ledger.bytes_sent(rank, comm::Purpose::activation), wide.ledger.bytes_sent(rank, comm::Purpose::activation));
  }
}

TEST(LinearAttentionContext, FindsDocumentsThatStartOnTheFirstTokenOfASlice) {
  const at::Tensor documents = at::tensor({4, 4, 7, 7, 7, 9}, at::kLong).view({2, 3});
  EXPECT_TRUE(at::equal(document_starts(documents, {}), at::tensor({0, 0, 1, 0, 0, 1}).view({2, 3}).to(at::kBool)));
  EXPECT_TRUE(at::equal(document_starts(documents, at::tensor({4, 4}, at::kLong)), at::tensor({0, 0, 1, 1, 0, 1}).view({2, 3}).to(at::kBool)));
  EXPECT_EQ(document_starts(documents.narrow(1, 0, 0), at::tensor({4, 4}, at::kLong)).numel(), 0);
}

// The state that came in is part of what backward needs: without it only ranks after the first are wrong, and not by much.
TEST(LinearAttentionContext, ABackwardWithoutTheIncomingStateIsFoundOnTheLastRank) {
  const std::vector<double> found = errors({.cuts = kCuts[2]}, /*forget_state=*/true);
  EXPECT_LE(found.front(), 1e-9);
  EXPECT_GE(found.back(), 1e-3);
}

TEST(LinearAttentionContext, ZecoSendsOneStateEachWayWhateverTheNumberOfRanks) {
  for (const int ranks : {4, 8}) {
    const Setting s{.cuts = std::vector<int64_t>(static_cast<size_t>(ranks), 9)};
    const int64_t state = 8 * s.batch * s.heads * s.key_dim * s.value_dim;
    harness::Run run;
    errors(s, false, &run);
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(run.ledger.bytes_sent(rank, comm::Purpose::activation), (rank + 1 < ranks ? state : 0) + (rank > 0 ? state : 0));
  }
}

TEST(LinearAttentionContext, Lasp2SendsAllStatesToAll) {
  const Setting s{.cuts = {9, 9, 9, 9}, .form = LinearForm::lasp2};
  const int64_t with_decay = 8 * s.batch * s.heads * s.key_dim * (s.value_dim + 1);
  harness::Run run;
  errors(s, false, &run);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(run.ledger.bytes_sent(rank, comm::Purpose::activation), 2 * 3 * with_decay);
}

}  // namespace
}  // namespace cairn::model
