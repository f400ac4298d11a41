#pragma once
#include "mesh/batch.h"
#include "model/call.h"
#include "model/context/split.h"
#include "parallel/pass.h"

namespace cairn::parallel {

// The batch of a pass as this rank sees it: its positions of every sequence where ranks along cp share them out, else all of it.
class LocalBatch {
 public:
  explicit LocalBatch(const Pass& pass);
  LocalBatch(const LocalBatch&) = delete;
  LocalBatch& operator=(const LocalBatch&) = delete;

  const mesh::Batch& batch() const { return cut_ ? own_ : whole_; }
  // Refers to this object.
  model::Slice slice() const;
  // Which sample and position each token here is, where the pass draws by them.
  const at::Tensor* token_keys() const { return keys_.defined() ? &keys_ : nullptr; }

 private:
  const mesh::Batch& whole_;
  bool cut_ = false;
  bool ring_ = false;
  mesh::Batch own_;
  model::ContextSplit split_;
  at::Tensor keys_;
};

}  // namespace cairn::parallel
