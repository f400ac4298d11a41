// Runs the kernels of a layer on the same values hundreds of times, as in training, and expects bitwise identical results.
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/fused_gemm.h"
#include "kernels/gemm.h"
#include "kernels/on_gpu.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/tensor_checksum.h"

namespace cairn::kernels {
namespace {

struct Made {
  std::string name;
  at::Tensor value;
};

// One layer with its ends, forth and back.
class Layer {
 public:
  explicit Layer(int64_t batch) : batch_(batch) {}

  std::vector<Made> run() const {
    std::vector<Made> all;
    const auto made = [&](const char* name, const at::Tensor& value) { all.push_back({name, value}); };
    const auto room = [&](at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
      return at::empty(sizes, x_.options().dtype(type));
    };
    const int64_t rows = batch_ * kLength;

    const at::Tensor looked_up = room({rows, kEmbed});
    embedding(looked_up, table_, ids_);
    made("embedding", looked_up);
    const at::Tensor normed = room({rows, kEmbed}), rstd = room({rows}, at::kFloat);
    rms_norm(normed, rstd, x_, gain_, 1e-5);
    made("rms_norm", normed);
    const at::Tensor qkv = room({rows, 3 * kEmbed});
    linear_rope(qkv, normed, w_qkv_, {.table = angles_, .heads = 2 * kHeads, .length = kLength});
    made("linear_rope", qkv);
    const at::Tensor heads = qkv.view({batch_, kLength, 3 * kHeads, kHeadDim});
    const at::Tensor q = heads.narrow(2, 0, kHeads), k = heads.narrow(2, kHeads, kHeads), v = heads.narrow(2, 2 * kHeads, kHeads);
    const auto [attended, lse] = attend(q, k, v, {});
    made("attention", attended);
    const at::Tensor stream = room({rows, kEmbed});
    linear(stream, attended.reshape({rows, kEmbed}), w_out_, &x_);
    made("linear onto the stream", stream);
    const at::Tensor gate_up = room({rows, 2 * kFf}), gated = room({rows, kFf});
    linear_swiglu(gate_up, gated, normed, w_gate_up_);
    made("linear_swiglu", gate_up);
    made("linear_swiglu, gated", gated);
    const at::Tensor logits = room({rows, kVocab}), losses = room({rows}, at::kFloat), sums = room({rows}, at::kFloat);
    linear(logits, normed, table_);
    cross_entropy_and_gradient(losses, sums, logits, ids_, scale_);
    made("cross entropy", losses);
    made("cross entropy, gradient", logits);

    const at::Tensor dtable = room({kVocab, kEmbed}, at::kFloat);
    linear_backward_weight(dtable, logits, normed);
    made("linear_backward_weight of the head", dtable.clone());
    const at::Tensor dnormed = room({rows, kEmbed});
    linear_backward_input(dnormed, logits, table_);
    made("linear_backward_input of the head", dnormed);
    const at::Tensor dgate_up = gate_up.clone(), again = room({rows, kFf});
    linear_swiglu_backward(dgate_up, again, dy_, w_down_, dgate_up);
    made("linear_swiglu_backward", dgate_up);
    made("linear_swiglu_backward, gated", again);
    const at::Tensor dw_down = room({kEmbed, kFf}, at::kFloat), dw_gate_up = room({2 * kFf, kEmbed}, at::kFloat);
    linear_backward_weight(dw_down, dy_, again);
    made("linear_backward_weight, down", dw_down);
    linear_backward_weight(dw_gate_up, dgate_up, normed);
    made("linear_backward_weight, gate and up", dw_gate_up);
    const at::Tensor dx = room({rows, kEmbed}), dgain = room({kEmbed}, at::kFloat), made_again = room({rows, kEmbed});
    linear_backward_input(dx, dgate_up, w_gate_up_);
    made("linear_backward_input, gate and up", dx.clone());
    rms_norm_backward({.dx = dx, .dw = dgain, .y = &made_again}, dx, x_, gain_, rstd, &dy_);
    made("rms_norm_backward", dx);
    made("rms_norm_backward, gain", dgain);
    made("rms_norm_backward, y", made_again);
    const at::Tensor by_head = dy_.view({batch_, kLength, kHeads, kHeadDim}), dqkv = at::empty_like(heads);
    const AttentionGradients found =
        attention_gradients({at::empty_like(q), at::empty_like(k), at::empty_like(v)}, by_head, q, k, v, attended, lse, {});
    made("attention, dq", found.q);
    made("attention, dk", found.k);
    made("attention, dv", found.v);
    rope_backward(dqkv, {found.q, found.k, found.v}, angles_);
    made("rope_backward", dqkv);
    embedding_backward(dtable, ids_, dx);
    made("embedding_backward", dtable);
    const std::vector<at::Tensor> gradients{dtable.flatten(), dw_down.flatten(), dw_gate_up.flatten(), dgain};
    made("sum of squares", sum_of_squares(gradients));
    return all;
  }

 private:
  static constexpr int64_t kLength = 1024, kHeads = 12, kHeadDim = 128, kEmbed = kHeads * kHeadDim, kFf = 4096, kVocab = 5003;

  static at::Tensor low(const std::vector<int64_t>& sizes, uint64_t seed, double size = 1) {
    return on_gpu((normal(sizes, seed) * size).to(at::kBFloat16));
  }

  int64_t batch_;
  at::Tensor x_ = low({batch_ * kLength, kEmbed}, 1), dy_ = low({batch_ * kLength, kEmbed}, 2), gain_ = low({kEmbed}, 3),
             table_ = low({kVocab, kEmbed}, 4, 0.05), w_qkv_ = low({3 * kEmbed, kEmbed}, 5, 0.05), w_out_ = low({kEmbed, kEmbed}, 6, 0.05),
             w_gate_up_ = low({2 * kFf, kEmbed}, 7, 0.05), w_down_ = low({kEmbed, kFf}, 8, 0.05),
             scale_ = on_gpu(at::full({1}, 1.0 / 1024, at::kFloat)), ids_ = on_gpu(integers(0, kVocab, {batch_ * kLength}, 9));
  RopeTable angles_ = [] {
    const RopeTable here = rope_table(kLength, kHeadDim, 10000, at::kFloat);
    return RopeTable{on_gpu(here.cos), on_gpu(here.sin)};
  }();
};

at::Tensor sums_of_bits(const std::vector<Made>& all) {
  std::vector<at::Tensor> sums;
  for (const Made& one : all) sums.push_back(tensor_checksum(one.value));
  return at::stack(sums);
}

TEST(DeterminismOnCuda, KernelsAreBitwiseIdenticalEachTime) {
  CAIRN_NEEDS_GPU();
  constexpr int kTimes = 1000;
  const DeterministicAlgorithms repeatable;
  const Layer layer(/*batch=*/16);
  const std::vector<Made> made = layer.run();
  const at::Tensor first = sums_of_bits(made), others = at::zeros_like(first);  // times that each was not the same
  for (int i = 0; i < kTimes; ++i) others.add_(sums_of_bits(layer.run()).ne(first));
  const at::Tensor found = others.cpu();
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(found.const_data_ptr<int64_t>()[i], 0) << made[i].name;
}

}  // namespace
}  // namespace cairn::kernels
