#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "mesh/flat_layout.h"
#include "model/model.h"
#include "sync/one_byte/replica.h"

namespace cairn::study {

// A small network with tanh between its layers, on ten Gaussian clouds: pre-trained by gradients, then two labels are swapped, and what is
// left to learn is learned from slopes alone.
class SwappedClouds {
 public:
  SwappedClouds(uint64_t seed, std::vector<int64_t> widths, int64_t batch, int pretrain_steps = 150);

  const at::Tensor& start() const { return start_; }  // the pre-trained weights
  const mesh::FlatLayout& layout() const { return layout_; }
  int64_t elements() const { return layout_.elements; }
  // The mean loss on the batch that the key names, with the labels swapped.
  double loss(const model::Weights& at, const sync::BatchKey& batch) const;
  double held_out_loss(const at::Tensor& flat) const;  // on 4,096 points
  // The gradient of the held-out loss.
  at::Tensor gradient(const at::Tensor& flat) const;

 private:
  struct Points {
    at::Tensor x, labels;
  };
  Points points(const base::Random& random, int64_t count, bool swapped) const;
  at::Tensor run(const model::Weights& at, const Points& points) const;
  void pretrain(int steps);

  uint64_t seed_;
  std::vector<int64_t> widths_;
  int64_t batch_;
  mesh::FlatLayout layout_;
  at::Tensor centres_, start_;
  Points held_out_;
};

// A replica of it.
struct CloudReplica {
  at::Tensor flat;
  model::FlatWeights weights;
  sync::OneByteReplica replica;
  CloudReplica(const SwappedClouds& clouds, const sync::OneByteOptions& options, uint64_t run);
};

}  // namespace cairn::study
