// The parts of linear_attention.h in batched ATen operations, for every dtype and device. Internal to kernels/linear_attention.
#pragma once
#include "kernels/linear_attention.h"

namespace cairn::kernels::chunked {

LinearStates linear_states(const LinearAttention& on);
void attend_within_chunks(const at::Tensor& out, const LinearAttention& on);
void attend_earlier_chunks(const at::Tensor& out, const LinearAttention& on, const LinearStates& states, const at::Tensor& initial);
LinearStateGradients linear_state_gradients(const LinearAttention& on, const at::Tensor& dout);
void attend_within_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout);
void attend_earlier_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout,
                                    const LinearStates& states, const at::Tensor& initial, const LinearStateGradients& gradients,
                                    const at::Tensor& end);
void linear_decay_gradient(const at::Tensor& dg, const LinearAttention& on, const LinearGradients& gradients, const at::Tensor& base);

}  // namespace cairn::kernels::chunked
