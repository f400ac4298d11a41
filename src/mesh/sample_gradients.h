#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "mesh/local_shard.h"

namespace cairn::mesh {

// The projection R of gradients: entries +-1 / sqrt(dim), a function of seed, parameter name and index alone (Rademacher).
struct SampleProjection {
  int64_t dim = 1024;  // a multiple of kProjectionBlock
  uint64_t seed = 0;
};
inline constexpr int64_t kProjectionBlock = 128;

// One parameter and what this rank has of it.
struct SampledParameter {
  bool chosen = false;              // false: its gradient is dropped
  std::string name = {};            // keys the projection
  std::vector<int64_t> shape = {};  // of the whole
  LocalShard part = {};             // what this rank has of it
  bool summed = false;              // several ranks contribute a term each (SampleGradients::sum_terms)
  bool hidden_inputs = false;       // the inputs of this layer are hidden states of the model (see inputs())
  bool counts = true;               // of those ranks, the one that projects the sum
};

// A sink that keeps the samples of a pass apart. It projects the gradient of each sample blockwise,
//
//   v_s = sum over chosen parameters P of R_P vec(g_s,P),
//
// and adds up the squares of g. R is generated block by block and never stored; products accumulate in fp32. The rows of a pass are those
// of its samples, one sample after the other, equally many for each. Where parameters are sharded over ranks, v_s and the squares are sums
// over these ranks.
//
// A gradient that arrives summed over samples (add) is refused for chosen parameters, unless the pass has one sample.
class SampleGradients final : public Gradients {
 public:
  // `parameters`: of the model, by ParamId. `sum_terms` sums a tensor in place over the ranks of `summed` parameters; may be empty.
  SampleGradients(std::vector<SampledParameter> parameters, SampleProjection projection,
                  std::function<void(const at::Tensor&)> sum_terms = {});

  // Starts a pass over so many samples, on this device. Drops the results of the pass before. `row_weights` [rows]: what the rows of a
  // sample count in inputs(); undefined: all the same.
  void begin(int64_t samples, at::Device device, at::Tensor row_weights = {});
  const at::Tensor& projected() const { return projected_; }  // [samples, dim] fp32
  const at::Tensor& squares() const { return squares_; }      // [samples] fp32: squared norms
  // [samples, in] fp32: the mean input, over the rows of each sample, of the parameter with `hidden_inputs`. Undefined: there was
  // none.
  const at::Tensor& inputs() const { return inputs_; }

  void outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) override;
  void add(ParamId id, const at::Tensor& gradient) override;
  void add_sum(ParamId id, const at::Tensor& rows) override;
  void add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) override;
  void expect_more(ParamId, int64_t) override {}

 private:
  void take_inputs(const at::Tensor& in);
  void add_outer(const SampledParameter& parameter, const at::Tensor& in, const at::Tensor& dout);
  // Adds the part [samples, rows, columns] of a gradient whose first row is `first` of this rank's part.
  void add_part(const SampledParameter& parameter, at::Tensor part, int64_t first);
  void project(const SampledParameter& parameter, const at::Tensor& flat /*[samples, entries]*/, const at::Tensor& entries);

  std::vector<SampledParameter> parameters_;
  SampleProjection projection_;
  std::function<void(const at::Tensor&)> sum_terms_;
  int64_t samples_ = 0;
  at::Tensor projected_, squares_, inputs_, row_weights_;
};

// The rows of R for these entries (indices into the whole, flattened parameter): [entries, dim] fp32 on the device of `entries`. The same
// on every device.
at::Tensor projection_rows(const std::string& name, const SampleProjection& projection, const at::Tensor& entries /*[n] int64*/);

}  // namespace cairn::mesh
