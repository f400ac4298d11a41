#include "study/prune/layer_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <unistd.h>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/decoder/wiring.h"
#include "model/families/families.h"
#include "model/named_parameters.h"
#include "model/objective.h"

namespace cairn::study {
namespace {

constexpr const char* kLayerBlocks = "layers.";

// 3 for the block "layers.3.mlp", -1 for others.
int64_t layer_of_block(const std::string& name) {
  return name.starts_with(kLayerBlocks) ? std::stoll(name.substr(std::strlen(kLayerBlocks))) : -1;
}

}  // namespace

std::vector<ModelPart> parts_of(const model::Model& model, const model::DecoderShape& shape) {
  if (!model::is_standard(shape.residual))
    base::fail_input("model.residual = {}: layers are pruned one by one, and here they read from several others. Use a standard model.",
                     shape.residual);
  if (shape.streams.count > 1)
    base::fail_input("model.parscale.streams = {}: layers of parallel streams cannot be pruned one by one. Use a model with one stream.",
                     shape.streams.count);
  const auto& blocks = model.blocks();
  std::vector<ModelPart> parts;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t layer = layer_of_block(blocks[i]->card().name);
    const bool after = layer < 0 && !parts.empty() && layer_of_block(blocks[i - 1]->card().name) >= 0;
    if (parts.empty() || after || (layer >= 0 && layer != layer_of_block(blocks[i - 1]->card().name)))
      parts.push_back({.first = i, .last = i});
    parts.back().last = i + 1;
  }
  CAIRN_CHECK(static_cast<int64_t>(parts.size()) == shape.layers + 2, "{} parts of {} layers", parts.size(), shape.layers);
  for (ModelPart& part : parts) {
    std::set<int32_t> named;
    for (size_t i = part.first; i < part.last; ++i)
      for (const mesh::ParamId& id : model::named_parameters(blocks[i]->card()))
        for (int32_t k = 0; k < id.count; ++k) named.insert(id.first + k);
    part.parameters.assign(named.begin(), named.end());
  }
  return parts;
}

at::Tensor PartValues::find(const std::string& name) const {
  for (size_t i = 0; i < layout.pieces.size(); ++i)
    if (layout.pieces[i].name == name) return layout.view(flat, {static_cast<int32_t>(i)});
  return {};
}

PartValues make_values(const model::Model& model, const ModelPart& part, const at::Device& device) {
  PartValues values;
  for (const int32_t i : part.parameters) {
    const model::Parameter& one = model.parameters()[static_cast<size_t>(i)];
    values.layout.append(one.name, one.shape);
  }
  values.flat = at::zeros({values.layout.elements}, at::TensorOptions().dtype(at::kFloat).device(device));
  return values;
}

std::vector<size_t> read_values(const snapshot::Pretrained& from, const PartValues& into) {
  const at::NoGradGuard no_grad;
  const mesh::NamedTensors views = into.layout.views(into.flat);
  std::vector<size_t> missing;
  for (size_t i = 0; i < views.size(); ++i) {
    const at::Tensor found = from.view(views[i].name);
    if (!found.defined()) {
      missing.push_back(i);
      continue;
    }
    views[i].tensor.copy_(found);
    snapshot::check_finite(views[i].tensor, from.path, views[i].name);
  }
  return missing;
}

PartWeights::PartWeights(const model::Model& model, const PartValues& values) : values_(values) {
  std::map<std::string, int32_t> by_name;
  for (size_t i = 0; i < values.layout.pieces.size(); ++i) by_name[values.layout.pieces[i].name] = static_cast<int32_t>(i);
  for (size_t i = 0; i < model.parameters().size(); ++i)
    if (const auto found = by_name.find(model.parameters()[i].name); found != by_name.end())
      places_[static_cast<int32_t>(i)] = found->second;
}

at::Tensor PartWeights::get(mesh::ParamId id) const { return values_.layout.view(values_.flat, {places_.at(id.first), id.count}); }

PartGradients::PartGradients(const ModelPart& part, mesh::Gradients& into) : into_(into) {
  for (size_t i = 0; i < part.parameters.size(); ++i) places_[part.parameters[i]] = static_cast<int32_t>(i);
}

at::Tensor run_part(const model::Model& model, const ModelPart& part, const model::Weights& weights, model::Buffers& buffers,
                    const mesh::Batch& batch, const at::Tensor& in) {
  const at::NoGradGuard no_grad;
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone, .random = {}, .needs = {.input = false, .weights = false}};
  model::Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  if (in.defined()) values.put(model.blocks()[part.first]->card().reads.front(), in);
  for (size_t i = part.first; i < part.last; ++i) model.blocks()[i]->forward(values, nullptr, call);
  return values.take(model.blocks()[part.last - 1]->card().writes.front());
}

namespace {

[[noreturn]] void fail_activations(const std::string& what) {
  throw Error(Error::Kind::disk, fmt::format("activations of the calibration samples: {}: {}", what, std::strerror(errno)));
}

int64_t row_elements(const std::vector<int64_t>& shape) { return shape[1] * shape[2]; }

}  // namespace

ActivationStore::ActivationStore(std::vector<int64_t> shape, const at::Device& device, const std::string& file)
    : shape_(std::move(shape)), device_(device) {
  if (file.empty()) {
    all_ = at::empty(shape_, at::TensorOptions().dtype(at::kFloat).device(device));
    return;
  }
  file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file_ < 0) fail_activations(file);
  ::unlink(file.c_str());  // it lives as long as it is open
}

ActivationStore::~ActivationStore() {
  if (file_ >= 0) ::close(file_);
}

at::Tensor ActivationStore::read(int64_t begin, int64_t count) const {
  if (all_.defined()) return all_.narrow(0, begin, count);
  const at::Tensor rows = at::empty({count, shape_[1], shape_[2]}, at::kFloat);
  auto* into = static_cast<char*>(rows.mutable_data_ptr());
  const auto bytes = static_cast<int64_t>(rows.nbytes()), first = begin * row_elements(shape_) * 4;
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(file_, into + done, static_cast<size_t>(bytes - done), first + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_activations("cannot be read");
    done += n;
  }
  return rows.to(device_);
}

void ActivationStore::write(int64_t begin, const at::Tensor& rows) {
  if (all_.defined()) {
    all_.narrow(0, begin, rows.size(0)).copy_(rows);
    return;
  }
  const at::Tensor host = rows.to(at::kCPU, at::kFloat).contiguous();
  const auto* from = static_cast<const char*>(host.const_data_ptr());
  const auto bytes = static_cast<int64_t>(host.nbytes()), first = begin * row_elements(shape_) * 4;
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(file_, from + done, static_cast<size_t>(bytes - done), first + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_activations("cannot be written");
    done += n;
  }
}

double streamed_loss(const StreamedLoss& what) {
  const model::DecoderShape& shape = what.model.shape;
  const std::unique_ptr<model::Model> model = model::make_decoder(shape);
  const std::vector<ModelPart> parts = parts_of(*model, shape);
  model::Buffers buffers = model->make_buffers(at::TensorOptions().dtype(at::kFloat).device(what.device));
  const std::unique_ptr<model::Objective> objective = model::make_next_token();
  std::unique_ptr<ActivationStore> waiting;
  double sum = 0, count = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const PartValues values = make_values(*model, parts[p], what.device);
    CAIRN_CHECK(read_values(what.model, values).empty(), "{}: tensors are missing", what.model.path);
    const PartWeights weights(*model, values);
    for (int64_t begin = 0; begin < what.samples; begin += what.batch) {
      const int64_t n = std::min(what.batch, what.samples - begin);
      const mesh::Batch batch = what.batches(begin, n);
      const at::Tensor out = run_part(*model, parts[p], weights, buffers, batch, p > 0 ? waiting->read(begin, n) : at::Tensor());
      if (p + 1 < parts.size()) {
        if (p == 0 && begin == 0)
          waiting = std::make_unique<ActivationStore>(std::vector{what.samples, out.size(1), out.size(2)}, what.device, what.file);
        waiting->write(begin, out);
        continue;
      }
      model::Values outputs;
      outputs.put("logits", out);
      const model::Losses losses = objective->evaluate(outputs, batch, nullptr, 1, {});
      sum += losses.sum.item<double>();
      count += losses.count.item<double>();
    }
  }
  return sum / count;
}

}  // namespace cairn::study
