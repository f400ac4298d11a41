// Vectors of texts from a model that lies on several ranks.
#pragma once
#include <memory>

#include <ATen/core/Tensor.h>

#include "mesh/batch.h"
#include "parallel/generate/sharded_generator.h"

namespace cairn::parallel {

// A forward pass of an encoder (model::make_encoder) along tp, pp and cp. Ranks along dp are replicas, with batches of their own.
class ShardedEncoder {
 public:
  explicit ShardedEncoder(const ShardedModel& of);
  ~ShardedEncoder();
  ShardedEncoder(const ShardedEncoder&) = delete;
  ShardedEncoder& operator=(const ShardedEncoder&) = delete;

  // The vectors of a batch: fields tokens [rows, length], pool [rows, vectors, length] and, of packed rows, documents and positions. All
  // ranks of a replica call it with the same batch, on the model's device. Undefined on ranks without the last block; equal on the others.
  at::Tensor vectors(const mesh::Batch& batch);
  // Of the ranks that have vectors, whether this is the first.
  bool is_first_with_vectors() const;
  // Waits until the next stage has everything that was sent.
  void finish();

 private:
  class Runner;
  std::unique_ptr<Runner> runner_;
};

// The plan of an encoder on `ranks` ranks of a mesh of dp, tp, pp and cp, for sequences of up to `length` tokens. Throws bad_input, naming
// the mesh, for other axes and for what the model does not allow.
Plan encoding_plan(const mesh::Mesh& mesh, const model::Model& model, int64_t length);

}  // namespace cairn::parallel
