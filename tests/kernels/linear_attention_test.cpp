#include "kernels/linear_attention.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

enum class Gate { none, per_head, per_token, full };

struct Sizes {
  int64_t batch, length, heads, key_dim, value_dim, chunk;
};
// 1, primes, one off a power of two; heads wider than one scan task; a last chunk of one token.
const std::vector<Sizes> kSizes{
    {1, 1, 1, 1, 1, 16}, {2, 37, 2, 7, 5, 16}, {1, 65, 3, 16, 33, 64}, {1, 129, 1, 70, 24, 32}, {2, 200, 1, 17, 31, 128}};

// `mean` is the mean log decay: -2 makes exp(-b) of a chunk of 64 overflow (e^128).
LinearAttention problem(const Sizes& s, Gate gate, double mean, bool documents, at::ScalarType type = at::kFloat) {
  LinearAttention on{normal({s.batch, s.length, s.heads, s.key_dim}, 1, type), normal({s.batch, s.length, s.heads, s.key_dim}, 2, type),
                     normal({s.batch, s.length, s.heads, s.value_dim}, 3, type)};
  on.chunk = s.chunk;
  const auto decay = [&](int64_t length, int64_t dim) {
    return -normal({s.batch, length, s.heads, dim}, 4, type).abs() * (-mean * 1.2533);
  };
  if (gate == Gate::full) on.log_decay = decay(s.length, s.key_dim);
  if (gate == Gate::per_token) on.log_decay = decay(s.length, 1).expand(on.q.sizes());
  if (gate == Gate::per_head) on.log_decay = decay(1, 1).expand(on.q.sizes());
  if (documents) on.starts = integers(0, 19, {s.batch, s.length}, 5) == 0;
  return on;
}

LinearAttention in_double(const LinearAttention& on) {
  LinearAttention wide_one = on;
  wide_one.q = leaf(on.q), wide_one.k = leaf(on.k), wide_one.v = leaf(on.v);
  if (on.log_decay.defined()) wide_one.log_decay = leaf(on.log_decay);
  return wide_one;
}

struct Results {
  at::Tensor out, end;
  LinearGradients d;
  at::Tensor dg, dinitial;
};

// Forward and backward as one rank runs them, from a state that comes in and a gradient that comes back.
Results run_parts(const LinearAttention& on, const at::Tensor& dout, const at::Tensor& initial, const at::Tensor& dend) {
  Results r;
  r.out = at::full_like(on.v, 7), r.d = {at::full_like(on.q, 7), at::full_like(on.k, 7), at::full_like(on.v, 7)};
  const LinearStates states = linear_states(on);
  attend_within_chunks(r.out, on);
  attend_earlier_chunks(r.out, on, states, initial);
  r.end = initial.defined() ? states.end + states.decay.unsqueeze(3) * initial : states.end;
  const LinearStateGradients gradients = linear_state_gradients(on, dout);
  attend_within_chunks_backward(r.d, on, dout);
  attend_earlier_chunks_backward(r.d, on, dout, states, initial, gradients, dend);
  r.dg = at::full_like(on.q, 7, at::MemoryFormat::Contiguous);
  linear_decay_gradient(r.dg, on, r.d, linear_gate_base(states, initial, dend));
  r.dinitial = dend.defined() ? gradients.begin + states.decay.unsqueeze(3) * dend : gradients.begin;
  return r;
}

void expect_as_reference(const LinearAttention& on, bool chained, double roundings) {
  const at::ScalarType type = on.q.scalar_type();
  const std::vector<int64_t> state{on.q.size(0), on.q.size(2), on.q.size(3), on.v.size(3)};
  const at::Tensor dout = normal(on.v.sizes(), 6, type);
  const at::Tensor initial = chained ? normal(state, 7, type) : at::Tensor(), dend = chained ? normal(state, 8, type) : at::Tensor();
  const LinearAttention plain = in_double(on);
  const at::Tensor start = leaf(chained ? initial : at::zeros(state, type));
  const reference::LinearOutput expected = reference::linear_attention(plain, start);
  at::Tensor sum = (expected.out * wide(dout)).sum();
  if (chained) sum = sum + (expected.end * wide(dend)).sum();
  std::vector<at::Tensor> inputs{plain.q, plain.k, plain.v, start};
  if (on.log_decay.defined()) inputs.push_back(plain.log_decay);
  const std::vector<at::Tensor> d = torch::autograd::grad({sum}, inputs);
  with_threads([&] {
    const Results found = run_parts(on, dout, initial, dend);
    expect_close(found.out, expected.out.detach(), roundings, "out");
    expect_close(found.end, expected.end.detach(), roundings, "the state after the last token");
    expect_close(found.d.q, d[0], roundings, "dq");
    expect_close(found.d.k, d[1], roundings, "dk");
    expect_close(found.d.v, d[2], roundings, "dv");
    expect_close(found.dinitial, d[3], roundings, "the gradient of the state before the first token");
    if (on.log_decay.defined()) expect_close(found.dg, d[4], 8 * roundings, "dg");
  });
}

constexpr double kRoundings = 400;  // of sums of a few hundred terms

TEST(LinearAttention, MatchesTheRecurrenceAndItsGradientsForEveryKindOfDecay) {
  for (const Sizes& sizes : kSizes)
    for (const Gate gate : {Gate::none, Gate::per_head, Gate::per_token, Gate::full})
      for (const bool documents : {false, true}) {
        SCOPED_TRACE(testing::Message() << "length " << sizes.length << " gate " << static_cast<int>(gate) << " documents " << documents);
        expect_as_reference(problem(sizes, gate, -0.1, documents), /*chained=*/false, kRoundings);
        expect_as_reference(problem(sizes, gate, -0.1, documents), /*chained=*/true, kRoundings);
      }
}

TEST(LinearAttention, SurvivesDecaysWhoseInverseOverflows) {
  for (const Sizes& sizes : kSizes)
    for (const double mean : {-2.0, -20.0}) {
      SCOPED_TRACE(testing::Message() << "length " << sizes.length << " mean " << mean);
      expect_as_reference(problem(sizes, Gate::full, mean, true), /*chained=*/true, kRoundings);
    }
}

TEST(LinearAttention, InDoubleIsExact) {
  for (const Sizes& sizes : kSizes)
    for (const double mean : {-0.1, -2.0})
      for (const bool documents : {false, true}) {
        SCOPED_TRACE(testing::Message() << "length " << sizes.length << " mean " << mean << " documents " << documents);
        expect_as_reference(problem(sizes, Gate::full, mean, documents, at::kDouble), /*chained=*/true, kRoundings);
      }
  expect_as_reference(problem(kSizes[2], Gate::none, 0, true, at::kDouble), /*chained=*/true, kRoundings);
}

// Documents do not see each other: each alone gives the same.
TEST(LinearAttention, ADocumentIsComputedAsIfItStoodAlone) {
  const Sizes sizes{1, 100, 2, 16, 16, 32};
  LinearAttention on = problem(sizes, Gate::full, -0.1, false);
  on.starts = at::zeros({1, 100}, at::kBool);
  on.starts[0][0] = true, on.starts[0][43] = true, on.starts[0][44] = true;
  const at::Tensor dout = normal(on.v.sizes(), 6);
  const Results packed = run_parts(on, dout, {}, {});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 43}, {43, 44}, {44, 100}}) {
    const auto part = [begin = begin, end = end](const at::Tensor& x) { return x.slice(1, begin, end); };
    LinearAttention alone{part(on.q), part(on.k), part(on.v), part(on.log_decay)};
    alone.chunk = 64;
    const Results own = run_parts(alone, part(dout), {}, {});
    expect_close(part(packed.out), wide(own.out), 100, "out");
    expect_close(part(packed.d.k), wide(own.d.k), 100, "dk");
    expect_close(part(packed.dg).narrow(1, 1, end - begin - 1), wide(own.dg.narrow(1, 1, end - begin - 1)), 400, "dg");
  }
}

TEST(LinearAttention, TakesSlicesOfFusedBuffers) {
  const Sizes sizes{2, 37, 3, 16, 16, 16};
  const at::Tensor fused = normal({2, 37, 9, 16}, 1);
  LinearAttention on{fused.narrow(2, 0, 3), fused.narrow(2, 3, 3), fused.narrow(2, 6, 3),
                     problem(sizes, Gate::full, -0.1, false).log_decay};
  on.chunk = 16;
  expect_as_reference(on, /*chained=*/true, kRoundings);
}

TEST(LinearAttention, CallsBetweenWhileItComputes) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // chunks are divided over threads, and one of them calls
  const LinearAttention on = problem({1, 2048, 4, 64, 128, 64}, Gate::full, -0.1, false);
  int calls = 0;
  attend_within_chunks(at::empty_like(on.v), on, [&] { ++calls; });
  at::set_num_threads(threads);
  EXPECT_GE(calls, 4);
}

TEST(LinearAttention, RefusesChunksThatAreNoPowerOfTwo) {
  LinearAttention on = problem(kSizes[1], Gate::full, -0.1, false);
  on.chunk = 48;
  const std::string error = error_of([&] { linear_states(on); });
  EXPECT_NE(error.find("chunk = 48: a power of two"), std::string::npos) << error;
}

}  // namespace
}  // namespace cairn::kernels
