// One pass of a decoder forward and back, in slices along the sequence or over whole sequences, with its time and its peak memory.
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include <ATen/core/Tensor.h>

#include "mesh/batch.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/shape.h"
#include "model/model.h"
#include "model/objective.h"

namespace cairn::study {

// Llama of 4 layers, width 256.
model::DecoderShape stream_shape(int64_t vocab, int64_t length);
// Random tokens, the first third of the first sample, a quarter of the second and so on without targets.
mesh::Batch stream_batch(uint64_t seed, int64_t samples, int64_t length, int64_t vocab);

// How a pass is computed.
struct StreamWay {
  int64_t slice = 0, head_slice = 0;  // 0: whole sequences, whole logits
  bool recompute = false;             // every block but the head
};
inline constexpr StreamWay kRecomputation{.recompute = true};
// Chunks of logits without a target are left out, as the trainer does.
inline StreamWay streamed(int64_t slice, int64_t head_slice) { return {.slice = slice, .head_slice = head_slice, .recompute = true}; }

// A model with random weights, and the memory of its gradients.
class StreamTrial {
 public:
  StreamTrial(const model::DecoderShape& shape, at::ScalarType dtype, uint64_t seed, const model::AdapterShape& lora = {});

  struct Outcome {
    double loss = 0, seconds = 0;
    int64_t peak_bytes = 0;                // beside weights, gradients and batch; of CPU tensors, where the host allocator is installed
    std::map<int64_t, int64_t> announced;  // by parameter: how often its gradient was
  };
  Outcome run(const mesh::Batch& batch, const model::Objective& objective, const StreamWay& way);

  // The largest relative distance of any parameter's gradient from `whole`.
  double apart(const at::Tensor& whole) const;
  const at::Tensor& gradients() const { return gradients_; }

 private:
  std::unique_ptr<model::Model> model_;
  at::Tensor flat_, gradients_;
  model::Buffers buffers_;
};

}  // namespace cairn::study
