// Turns sampler and data set into the batches of one rank. Training calls it for every step; the Loader calls it ahead of time.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <c10/core/Device.h>

#include "data/batch_split.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "mesh/batch.h"

namespace cairn::data {

class Dataset;

// Which batch a step trains on. Steps count from 1. Rollbacks leave batches out, so step s trains on the sampler's batch
// s - 1 + batches_skipped; progress and learning rate follow the step alone.
struct BatchIndex {
  int64_t step = 1;
  int64_t batches_skipped = 0;

  int64_t batch() const { return step - 1 + batches_skipped; }
};

// What the global batch of a step amounts to. Every rank computes the same without communication.
struct BatchCounts {
  std::vector<int64_t> ids;         // of all samples, in order
  double learning_rate_factor = 1;  // Draw::learning_rate_factor
  SampleShape shape = {};           // Draw::shape
  int64_t tokens = 0;               // targets in all samples (Dataset::tokens_in)
  int64_t step_group_tokens = 0;    // targets in the samples of this rank's step group
  int64_t step_group_samples = 0;
  int64_t max_local_samples = 0;  // the most samples that any rank has
};

// Makes batches in host memory. Immutable: a loader's thread may make batches while training reads counts. Borrows everything.
class BatchSource {
 public:
  // `device` is where batches will be used. For a GPU they are pinned, so that copies to it are asynchronous, and carry the document
  // starts that variable-length attention needs.
  BatchSource(const Dataset& dataset, const Sampler& sampler, const Subset& subset, SampleShares shares, at::Device device);

  const SampleShares& shares() const { return shares_; }

  std::vector<int64_t> ids(const BatchIndex& index) const;  // of the global batch
  BatchCounts counts(const BatchIndex& index) const;
  // This rank's samples of the global batch in their shape, with progress, and weights where sampler or subset have some.
  mesh::Batch make(const BatchIndex& index) const;
  // The fraction of the run before this step (Sampler::progress).
  double progress(const BatchIndex& index) const;
  // Steps of the whole run, at most: batches that rollbacks have skipped do not come again where the sampler has no more.
  int64_t steps(int64_t batches_skipped) const;
  // A batch of these samples in their own shape, without weights and not pinned: held-out samples.
  mesh::Batch fill(std::span<const int64_t> ids) const;
  // Makes the batches of steps from.step .. end_step - 1 on a thread of its own. This source must outlive the loader.
  std::unique_ptr<Loader> load_ahead(const BatchIndex& from, int64_t end_step) const;

 private:
  mesh::Batch filled(std::span<const int64_t> ids, const SampleShape& shape, int64_t step) const;  // for training

  const Dataset& dataset_;
  const Sampler& sampler_;
  const Subset& subset_;
  const SampleShares shares_;
  const at::Device device_;
};

}  // namespace cairn::data
