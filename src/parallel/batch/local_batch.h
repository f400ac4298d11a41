#pragma once
#include "mesh/batch.h"
#include "model/call.h"
#include "model/context/layout.h"
#include "parallel/pass.h"

namespace cairn::parallel {

// Positions that a sample may have, for the keys of tokens: key = sample * kMaxPositions + position. data.length is at most that.
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;

// The batch of a pass on this rank: its positions of every sequence where sequences are split along cp, else all of it.
class LocalBatch {
 public:
  explicit LocalBatch(const Pass& pass);
  LocalBatch(const LocalBatch&) = delete;
  LocalBatch& operator=(const LocalBatch&) = delete;

  const mesh::Batch& batch() const { return cut_ ? own_ : whole_; }
  // Points into this object.
  model::Slice slice() const;
  // By token: a key made of sample and position, where blocks draw random numbers by token; null: they do not.
  const at::Tensor* token_keys() const { return keys_.defined() ? &keys_ : nullptr; }

 private:
  mesh::Batch whole_;
  bool cut_ = false;
  mesh::Batch own_;
  int64_t positions_ = 0;  // of each sample, where samples are no sequences of tokens
  model::ContextLayout layout_;
  at::Tensor keys_;
};

}  // namespace cairn::parallel
