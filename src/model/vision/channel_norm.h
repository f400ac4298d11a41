#pragma once
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "model/call.h"
#include "model/saved.h"

namespace cairn::model {

// Batch normalisation of rows [rows, channels], with ReLU where wanted, as a part of a block (model/classifier/batch_norm.h has the rules
// of its statistics). The rows may have the first channels only (supernet/subnet.h): the parameters are prefixes then.
//
// The running statistics are those of the whole model: passes that train a subnet leave them alone. Those of a subnet are made when they
// are needed, by passes without gradients (PassOptions::batch_statistics).
struct ChannelNorm {
  std::string name;  // of the buffers
  mesh::ParamId gain = {}, shift = {};
  int64_t channels = 0;
  bool relu = true;

  at::Tensor forward(const at::Tensor& x, Saved* keep, const Call& call) const;
  // Returns the gradient of x.
  at::Tensor input_gradient(const at::Tensor& dy, Saved& saved, const Call& call) const;
  void weight_gradient(Saved& saved, mesh::Gradients& into) const;
  at::Tensor plain(const at::Tensor& x, const Call& call) const;
};

}  // namespace cairn::model
