#pragma once
#include "base/random.h"
#include "kernels/aten.h"
#include "mesh/batch.h"

namespace cairn::parallel {

// Tokens and targets drawn at random; one target is to be ignored.
inline mesh::Batch token_batch(int64_t samples, int64_t length, int64_t vocab) {
  mesh::Batch batch;
  const base::Random random(7);
  const at::Tensor tokens = at::empty({samples, length}, at::kLong), targets = at::empty({samples, length}, at::kLong);
  for (int64_t i = 0; i < samples * length; ++i) {
    tokens.data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i), static_cast<uint64_t>(vocab)));
    targets.data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(2 * i + 1), static_cast<uint64_t>(vocab)));
  }
  targets[0][0] = -100;
  batch.ids = at::arange(samples);
  batch.fields["tokens"] = {tokens};
  batch.fields["targets"] = {targets};
  return batch;
}

}  // namespace cairn::parallel
