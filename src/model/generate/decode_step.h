#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/matvec.h"
#include "model/call.h"
#include "model/decoder/shape.h"
#include "model/generate/decode_runner.h"

namespace cairn::model {

class Model;

// One decode step of a decoder on a CPU with fp32 weights: one token for each of a few sequences with a KV cache. It computes what the
// blocks compute, without tensors and without allocation; all threads go through the layers together and meet at barriers. A row's results
// do not depend on the other rows.
class DecodeStep {
 public:
  // Null where the model is not a standard decoder without adapters, or its weights are not fp32 on the CPU. Borrows all three.
  static std::unique_ptr<DecodeStep> make(const Model& model, const Weights& weights, const Buffers& buffers);

  using Row = DecodeRow;
  // Overwrites logits [rows, vocab] and appends each row's keys and values to the cache, which must have room.
  void run(std::span<const Row> rows, KvCache& cache, float* logits);

 private:
  struct Gain {
    const float *weight = nullptr, *bias = nullptr;  // with a bias: LayerNorm
  };
  struct Layer {
    Gain attention_norm = {}, mlp_norm = {}, q_norm = {}, k_norm = {};
    kernels::WeightView qkv = {}, out = {}, up = {}, down = {};
    std::string cache_name = {};
  };
  struct ThreadWork;  // one thread's part of a step

  DecodeStep() = default;
  void reserve(int64_t rows, int64_t positions, int threads);

  DecoderShape shape_;
  int64_t elements_ = 0;  // parameters: about the multiplications of a step
  bool rotary_ = true, gated_ = true;
  std::vector<at::Tensor> held_;  // what the pointers below point into
  const float *table_ = nullptr, *positions_ = nullptr, *cos_ = nullptr, *sin_ = nullptr;
  std::vector<Layer> layers_;
  Gain final_norm_;
  kernels::WeightView head_;
  // Scratch: hidden states, and for each thread a normed copy and the scores of one head.
  std::vector<float> hidden_, qkv_, mixed_, up_, normed_, scores_;
  std::vector<float*> keys_, values_;  // of each layer's cache
};

}  // namespace cairn::model
