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

namespace cairn::model {

class Model;

// One token for each of a few sequences, whose earlier keys and values are in a cache: what the blocks of a decoder compute, with nothing
// between the products but arithmetic. Weights are read where they lie, all threads walk through the layers together, and nothing is
// allocated. For fp32 weights on a CPU. A row's numbers do not depend on the rows beside it.
class DecodeStep {
 public:
  // Nothing where the model is not a plain decoder (adapters beside its layers) or its weights lie elsewhere. Borrows all three.
  static std::unique_ptr<DecodeStep> make(const Model& model, const Weights& weights, const Buffers& buffers);

  struct Row {
    int32_t token = 0;
    int64_t position = 0;
    int64_t cache_row = 0;  // which row of the cache remembers this sequence
  };
  // Overwrites logits [rows, vocab], and adds each row's key and value to the cache, which must have room for them.
  void run(std::span<const Row> rows, KvCache& cache, float* logits);

 private:
  struct Gain {
    const float *weight = nullptr, *bias = nullptr;  // a bias: LayerNorm
  };
  struct Layer {
    Gain attention_norm = {}, mlp_norm = {}, q_norm = {}, k_norm = {};
    kernels::WeightView qkv = {}, out = {}, up = {}, down = {};
    std::string cache_name = {};
  };
  struct ThreadWork;  // what one thread does of one step

  DecodeStep() = default;
  void reserve(int64_t rows, int64_t positions, int threads);

  DecoderShape shape_;
  int64_t elements_ = 0;  // about as many products as a step takes
  bool rotary_ = true, gated_ = true;
  std::vector<at::Tensor> held_;  // what the pointers below point into
  const float *table_ = nullptr, *positions_ = nullptr, *cos_ = nullptr, *sin_ = nullptr;
  std::vector<Layer> layers_;
  Gain final_norm_;
  kernels::WeightView head_;
  // Scratch: hidden states, and for each thread a copy of what was normed and the scores of one head.
  std::vector<float> hidden_, qkv_, mixed_, up_, normed_, scores_;
  std::vector<float*> keys_, values_;  // of each layer's cache
};

}  // namespace cairn::model
