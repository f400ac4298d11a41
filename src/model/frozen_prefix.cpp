#include "model/frozen_prefix.h"

#include <algorithm>
#include <set>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::model {
namespace {

bool is_frozen(const Model& model, const Block& block, const std::vector<bool>& trained) {
  for (const mesh::ParamId& id : named_parameters(block.card()))
    for (int32_t i = id.first; i < id.first + id.count; ++i) {
      const auto at = static_cast<size_t>(i);
      if (trained[at] || model.parameters()[at].role == Parameter::Role::adapter) return false;
    }
  return true;
}

}  // namespace

FrozenPrefix::FrozenPrefix(const Model& model, const std::vector<bool>& trained, int64_t bytes_max) : bytes_max_(bytes_max) {
  const auto& blocks = model.blocks();
  while (blocks_ < blocks.size() && is_frozen(model, *blocks[blocks_], trained)) ++blocks_;
  if (blocks_ == blocks.size()) blocks_ = 0;  // nothing is trained: there is no backward to cut
  std::set<std::string> written, read;
  for (size_t i = 0; i < blocks.size(); ++i)
    for (const std::string& name : i < blocks_ ? blocks[i]->card().writes : blocks[i]->card().reads)
      (i < blocks_ ? written : read).insert(name);
  std::set_intersection(written.begin(), written.end(), read.begin(), read.end(), std::back_inserter(outputs_));
}

std::vector<int64_t> FrozenPrefix::ids_of(const at::Tensor& ids) const {
  const at::Tensor here = ids.to(at::kCPU).contiguous();
  const int64_t* first = here.const_data_ptr<int64_t>();
  return {first, first + here.numel()};
}

bool FrozenPrefix::restore(const at::Tensor& ids, const at::Device& device, Values& values) {
  const std::vector<int64_t> samples = ids_of(ids);
  std::vector<const std::vector<at::Tensor>*> found;
  for (const int64_t sample : samples) {
    const auto one = kept_.find(sample);
    if (one == kept_.end()) return false;
    found.push_back(&one->second);
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const auto* one : found) parts.push_back((*one)[i]);
    values.put(outputs_[i], at::cat(parts).to(device));
  }
  restored_ += static_cast<int64_t>(samples.size());
  return true;
}

void FrozenPrefix::keep(const at::Tensor& ids, Values& values) {
  const std::vector<int64_t> samples = ids_of(ids);
  const auto count = static_cast<int64_t>(samples.size());
  std::vector<at::Tensor> whole;
  int64_t bytes_each = 0;
  for (const std::string& name : outputs_) {
    whole.push_back(values.get(name));
    CAIRN_CHECK(whole.back().size(0) % count == 0, "{}: {} rows of {} samples", name, whole.back().size(0), count);
    bytes_each += static_cast<int64_t>(whole.back().nbytes()) / count;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sample = samples[static_cast<size_t>(i)];
    if (kept_.contains(sample) || bytes_ + bytes_each > bytes_max_) continue;
    std::vector<at::Tensor>& one = kept_[sample];
    for (const at::Tensor& value : whole) {
      const int64_t rows = value.size(0) / count;
      one.push_back(value.narrow(0, i * rows, rows).to(at::kCPU, value.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
    }
    bytes_ += bytes_each;
  }
}

}  // namespace cairn::model
