// Gated linear attention: checks the arguments, chooses between the CPU's kernels and batched ATen, cuts the work into tasks.
#include "kernels/linear_attention.h"

#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tensor.h"
#include "kernels/linear_attention/chunked.h"
#include "kernels/linear_attention/linear_problem.h"

namespace cairn::kernels {
namespace {

void check(const LinearAttention& on) {
  const at::Tensor &q = on.q, &v = on.v;
  CAIRN_CHECK(q.dim() == 4 && v.dim() == 4 && q.sizes() == on.k.sizes() && q.sizes().slice(0, 3) == v.sizes().slice(0, 3),
              "linear attention over q {}, k {}, v {}", c10::str(q.sizes()), c10::str(on.k.sizes()), c10::str(v.sizes()));
  CAIRN_CHECK(!on.log_decay.defined() || on.log_decay.sizes() == q.sizes(), "log decays {} for keys {}", c10::str(on.log_decay.sizes()),
              c10::str(q.sizes()));
  CAIRN_CHECK(!on.log_decay.defined() || on.log_decay.scalar_type() == at::kFloat || on.log_decay.scalar_type() == at::kDouble,
              "log decays of {}: sums of them need fp32", c10::toString(on.log_decay.scalar_type()));
  CAIRN_CHECK(!on.starts.defined() || (on.starts.scalar_type() == at::kBool && on.starts.sizes() == q.sizes().slice(0, 2)),
              "document starts {} for keys {}", c10::str(on.starts.sizes()), c10::str(q.sizes()));
  CAIRN_CHECK(on.chunk >= 2 && on.chunk <= kChunkMax && (on.chunk & (on.chunk - 1)) == 0, "chunk = {}: a power of two up to {}", on.chunk,
              kChunkMax);
}

bool has_rows(const at::Tensor& x) { return is_cpu_float(x) && (x.size(3) == 1 || x.stride(3) == 1); }

template <class... Outputs>
bool on_cpu(const LinearAttention& on, const Outputs&... outputs) {
  const bool decay = !on.log_decay.defined() || (is_cpu_float(on.log_decay) &&
                                                 (on.log_decay.stride(3) == 0 || on.log_decay.size(3) == 1 || on.log_decay.stride(3) == 1));
  return decay && on.chunk >= 16 && has_rows(on.q) && has_rows(on.k) && has_rows(on.v) && (has_rows(outputs) && ...);
}

LinearRows rows_of(const at::Tensor& x) { return {x.mutable_data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)}; }

// `starts` owns what the problem points at.
struct Problem : LinearProblem {
  at::Tensor held_starts;

  explicit Problem(const LinearAttention& on) {
    batch = on.q.size(0), length = on.q.size(1), heads = on.q.size(2), key_dim = on.q.size(3), value_dim = on.v.size(3);
    chunk = on.chunk, chunks = (length + chunk - 1) / chunk;
    scale = static_cast<float>(on.scale != 0 ? on.scale : 1 / std::sqrt(static_cast<double>(key_dim)));
    q = rows_of(on.q), k = rows_of(on.k), v = rows_of(on.v);
    if (on.log_decay.defined()) g = rows_of(on.log_decay), g_element = on.log_decay.size(3) == 1 ? 1 : on.log_decay.stride(3);
    if (on.starts.defined()) held_starts = on.starts.contiguous(), starts = held_starts.const_data_ptr<bool>();
  }
  Problem& with(const LinearStates& states, const at::Tensor& before) {
    this->states = states.before.mutable_data_ptr<float>(), factors = states.factors.mutable_data_ptr<float>();
    if (before.defined()) initial = before.const_data_ptr<float>();
    return *this;
  }
  Problem& into(const LinearGradients& gradients) {
    dq = rows_of(gradients.q), dk = rows_of(gradients.k), dv = rows_of(gradients.v);
    return *this;
  }
  at::Tensor blocks() const { return at::empty({batch, heads, chunks, key_dim, value_dim}, at::kFloat); }
  at::Tensor block_factors() const { return at::empty({batch, heads, chunks, key_dim}, at::kFloat); }
  at::Tensor one_state() const { return at::empty({batch, heads, key_dim, value_dim}, at::kFloat); }
};

void check_states(const Problem& p, const at::Tensor& state) {
  CAIRN_CHECK(!state.defined() || (all_cpu_float(state) && state.sizes() == at::IntArrayRef({p.batch, p.heads, p.key_dim, p.value_dim})),
              "a state {} for {} heads of {} x {}", c10::str(state.sizes()), p.heads, p.key_dim, p.value_dim);
}

// Of a chunk's products between two calls of `between`: a fraction of a millisecond, since messages wait for those calls.
constexpr int64_t kRoundProducts = 6 << 20;

void run_tasks(const Problem& p, const std::vector<LinearTask>& tasks, void (*run)(const LinearProblem&, const LinearTask&),
               const std::function<void()>& between = {}) {
  const auto all = static_cast<int64_t>(tasks.size());
  const int64_t stride = (linear_scratch(p) + 31) / 16 * 16, threads = std::min<int64_t>(at::get_num_threads(), all);
  const at::Tensor scratch = at::empty({stride * std::max<int64_t>(1, threads)}, at::kFloat);
  float* memory = scratch.mutable_data_ptr<float>();
  const int64_t per_thread = std::max<int64_t>(1, kRoundProducts / (p.chunk * p.chunk * (p.key_dim + p.value_dim)));
  const int64_t round = between ? per_thread * std::max<int64_t>(1, threads) : std::max<int64_t>(1, all);
  for (int64_t begin = 0; begin < all; begin += round) {
    parallel_tasks(std::min(round, all - begin), [&](int64_t index, int thread) {
      LinearTask task = tasks[static_cast<size_t>(begin + index)];
      task.scratch = memory + thread * stride;
      run(p, task);
    });
    if (between) between();
  }
}

std::vector<LinearTask> chunk_tasks(const Problem& p) {
  std::vector<LinearTask> tasks;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t n = 0; n < p.chunks; ++n) tasks.push_back({.batch = b, .head = h, .chunk = n});
  return tasks;
}

// A scan over chunks is serial, but rows of a state do not depend on each other.
std::vector<LinearTask> scan_tasks(const Problem& p) {
  std::vector<LinearTask> tasks;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t d = 0; d < p.key_dim; d += kKeysMax)
        tasks.push_back({.batch = b, .head = h, .key_begin = d, .key_end = std::min(p.key_dim, d + kKeysMax)});
  return tasks;
}

}  // namespace

LinearStates linear_states(const LinearAttention& on) {
  check(on);
  if (!on_cpu(on)) return chunked::linear_states(on);
  Problem p(on);
  LinearStates made{p.blocks(), p.block_factors(), p.one_state(), at::empty({p.batch, p.heads, p.key_dim}, at::kFloat)};
  p.with(made, {});
  p.scanned = made.end.mutable_data_ptr<float>(), p.decay = made.decay.mutable_data_ptr<float>();
  run_tasks(p, scan_tasks(p), scan_states_task);
  return made;
}

void attend_within_chunks(const at::Tensor& out, const LinearAttention& on, const std::function<void()>& between) {
  check(on);
  if (!on_cpu(on, out)) {
    chunked::attend_within_chunks(out, on);
    if (between) between();
    return;
  }
  Problem p(on);
  p.out = rows_of(out);
  run_tasks(p, chunk_tasks(p), within_chunk_task, between);
}

void attend_earlier_chunks(const at::Tensor& out, const LinearAttention& on, const LinearStates& states, const at::Tensor& initial) {
  check(on);
  if (!on_cpu(on, out)) return chunked::attend_earlier_chunks(out, on, states, initial);
  Problem p(on);
  check_states(p, initial);
  p.with(states, initial).out = rows_of(out);
  run_tasks(p, chunk_tasks(p), earlier_chunks_task);
}

LinearStateGradients linear_state_gradients(const LinearAttention& on, const at::Tensor& dout) {
  check(on);
  if (!on_cpu(on, dout)) return chunked::linear_state_gradients(on, dout);
  Problem p(on);
  LinearStateGradients made{p.blocks(), p.block_factors(), p.one_state(), at::empty({p.batch, p.heads, p.key_dim}, at::kFloat)};
  p.out = rows_of(dout);
  p.state_gradients = made.after.mutable_data_ptr<float>(), p.gradient_factors = made.factors.mutable_data_ptr<float>();
  p.scanned = made.begin.mutable_data_ptr<float>(), p.decay = made.decay.mutable_data_ptr<float>();
  run_tasks(p, scan_tasks(p), scan_gradients_task);
  return made;
}

void attend_within_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout,
                                   const std::function<void()>& between) {
  check(on);
  if (!on_cpu(on, dout, into.q, into.k, into.v)) {
    chunked::attend_within_chunks_backward(into, on, dout);
    if (between) between();
    return;
  }
  Problem p(on);
  p.into(into).out = rows_of(dout);
  run_tasks(p, chunk_tasks(p), within_chunk_backward_task, between);
}

void attend_earlier_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout,
                                    const LinearStates& states, const at::Tensor& initial, const LinearStateGradients& gradients,
                                    const at::Tensor& end) {
  check(on);
  if (!on_cpu(on, dout, into.q, into.k, into.v))
    return chunked::attend_earlier_chunks_backward(into, on, dout, states, initial, gradients, end);
  Problem p(on);
  check_states(p, initial), check_states(p, end);
  p.into(into).with(states, initial).out = rows_of(dout);
  p.state_gradients = gradients.after.mutable_data_ptr<float>(), p.gradient_factors = gradients.factors.mutable_data_ptr<float>();
  if (end.defined()) p.end_gradient = end.const_data_ptr<float>();
  run_tasks(p, chunk_tasks(p), earlier_chunks_backward_task);
}

void linear_decay_gradient(const at::Tensor& dg, const LinearAttention& on, const LinearGradients& gradients, const at::Tensor& base) {
  check(on);
  if (!on_cpu(on, gradients.q, gradients.k) || !all_cpu_float(dg) || (base.defined() && !all_cpu_float(base)))
    return chunked::linear_decay_gradient(dg, on, gradients, base);
  Problem p(on);
  p.dq = rows_of(gradients.q), p.dk = rows_of(gradients.k);
  float* to = dg.mutable_data_ptr<float>();
  const float* from = base.defined() ? base.const_data_ptr<float>() : nullptr;
  const at::Tensor sums = at::empty({p.batch * p.heads * p.key_dim}, at::kFloat);
  float* memory = sums.mutable_data_ptr<float>();
  parallel_tasks(p.batch * p.heads, [&](int64_t index, int) {
    decay_gradient_task(p, {.batch = index / p.heads, .head = index % p.heads, .scratch = memory + index * p.key_dim}, to, from);
  });
}

at::Tensor linear_gate_base(const LinearStates& states, const at::Tensor& initial, const at::Tensor& end) {
  if (!end.defined()) return {};
  const at::Tensor state = initial.defined() ? states.end + states.decay.unsqueeze(3) * initial : states.end;
  return (state * end).sum(3);
}

}  // namespace cairn::kernels
