// The operations of decoding on one token between the matrix-vector products: norms, rotation, attention over cached keys, activations.
// Serial and without allocation; the caller's threads each take rows or heads of their own. Results do not depend on that division.
#pragma once
#include <cstdint>
#include <span>

namespace cairn::kernels {

// y = x / rms(x) * gain; y may be x.
void rms_norm_row(float* y, const float* x, const float* gain, int64_t n, double eps);

// y = (x - mean) / deviation * gain + shift; y may be x.
void layer_norm_row(float* y, const float* x, const float* gain, const float* shift, int64_t n, double eps);

// Rotates one head of 2 * half elements in place ("rotate_half" order). cos and sin have `half` elements each.
void rotate_row(float* head, const float* cos, const float* sin, int64_t half);

// gate[i] = silu(gate[i]) * up[i].
void swiglu_row(float* gate, const float* up, int64_t n);

// x[i] = gelu(x[i]), in its tanh form.
void gelu_row(float* x, int64_t n);

// One query head over the cached keys of `count` earlier positions and over its own key.
struct RowAttention {
  const float *k, *v;          // of the first position that is seen; the next ones lie `stride` floats apart
  int64_t stride, count;       // earlier positions
  const float *own_k, *own_v;  // [head_dim]: its own position
  int64_t head_dim;
  float scale;
};
// out [head_dim] is overwritten; `scores` has room for count + 16.
void attend_row(float* out, const float* q, const RowAttention& a, float* scores);

// One query head over keys that lie in several places, its own among them. No run is empty. `scores` has room for all keys and 16 more for
// each run.
struct KeyRun {
  const float *k, *v;  // of the first key; the next ones lie `stride` floats apart
  int64_t stride, count;
};
void attend_runs(float* out, const float* q, std::span<const KeyRun> runs, int64_t head_dim, float scale, float* scores);

// The index of the largest element (the first of equals) and the log-sum-exp of the row.
struct RowSummary {
  int64_t largest;
  double log_sum_exp;
};
RowSummary summarize_row(const float* x, int64_t n);

}  // namespace cairn::kernels
