// A decoder that is computed one part at a time, with the weights of that part alone in memory: the embedding, each layer, the head.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/batch.h"
#include "mesh/flat_layout.h"
#include "mesh/gradients.h"
#include "model/call.h"
#include "model/model.h"
#include "snapshot/pretrained.h"

namespace cairn::study {

// Blocks of a model that follow each other, and the parameters that they name.
struct ModelPart {
  size_t first = 0, last = 0;            // blocks
  std::vector<int32_t> parameters = {};  // ascending
};

// The parts of a decoder: the embedding, each layer, and the rest. Refuses wirings in which a layer reads what is not its predecessor's
// output.
std::vector<ModelPart> parts_of(const model::Model& model, const model::DecoderShape& shape);

// The values of a part's parameters, fp32, in one buffer.
struct PartValues {
  mesh::FlatLayout layout;
  at::Tensor flat;
  // By name; undefined where there is none.
  at::Tensor find(const std::string& name) const;
};
PartValues make_values(const model::Model& model, const ModelPart& part, const at::Device& device);

// Reads the tensors of a part from the files of a model. Parameters that the files do not have keep what they hold; returns their places.
std::vector<size_t> read_values(const snapshot::Pretrained& from, const PartValues& into);

// Values as the weights of a model, which may be another than the one they were made for, as long as names and neighbours are the same.
class PartWeights final : public model::Weights {
 public:
  PartWeights(const model::Model& model, const PartValues& values);
  at::Tensor get(mesh::ParamId id) const override;

 private:
  const PartValues& values_;
  std::map<int32_t, int32_t> places_;  // by parameter of the model
};

// Gradients of a model's parameters, handed on under their places in a part.
class PartGradients final : public mesh::Gradients {
 public:
  PartGradients(const ModelPart& part, mesh::Gradients& into);
  void outer(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout) override { into_.outer(place(id), in, dout); }
  void outer_grouped(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) override {
    into_.outer_grouped(place(id), in, dout, groups);
  }
  void add(mesh::ParamId id, const at::Tensor& gradient) override { into_.add(place(id), gradient); }
  void add_sum(mesh::ParamId id, const at::Tensor& rows) override { into_.add_sum(place(id), rows); }
  void add_rows(mesh::ParamId id, const at::Tensor& rows, const at::Tensor& values) override { into_.add_rows(place(id), rows, values); }
  bool wants(mesh::ParamId id) const override { return into_.wants(place(id)); }
  void expect_more(mesh::ParamId id, int64_t contributions) override { into_.expect_more(place(id), contributions); }

 private:
  mesh::ParamId place(mesh::ParamId id) const { return {places_.at(id.first), id.count}; }
  mesh::Gradients& into_;
  std::map<int32_t, int32_t> places_;
};

// Runs a part forward. `batch`: its fields are read beside the value that comes in (undefined for the embedding). Returns what it writes;
// of the last part the logits.
at::Tensor run_part(const model::Model& model, const ModelPart& part, const model::Weights& weights, model::Buffers& buffers,
                    const mesh::Batch& batch, const at::Tensor& in);

// Activations [samples, length, embed] that wait between layers, in memory or in a file that is removed at the end.
class ActivationStore {
 public:
  ActivationStore(std::vector<int64_t> shape, const at::Device& device, const std::string& file /*empty: memory*/);
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;
  at::Tensor read(int64_t begin, int64_t count) const;  // in memory a view
  void write(int64_t begin, const at::Tensor& rows);

 private:
  std::vector<int64_t> shape_;
  at::Device device_;
  at::Tensor all_;  // undefined: in the file
  int file_ = -1;
};

// The mean loss of a model on these samples, computed part by part. `batches(begin, count)` makes a batch of them on the model's device.
struct StreamedLoss {
  const snapshot::Pretrained& model;
  int64_t samples = 0, batch = 8;
  std::function<mesh::Batch(int64_t begin, int64_t count)> batches;
  at::Device device;
  std::string file = {};  // where activations wait; empty: in memory
};
double streamed_loss(const StreamedLoss& what);

}  // namespace cairn::study
