#include "sync/islands/flat_parameters.h"

#include <numeric>

#include "kernels/aten.h"
#include "mesh/write_barrier.h"

namespace cairn::sync {
namespace {

std::vector<size_t> every(size_t count) {
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

}  // namespace

FlatParameters::FlatParameters(std::span<const mesh::NamedTensor> all, std::vector<size_t> which, mesh::WriteBarrier* barrier)
    : all_(all), which_(std::move(which)), barrier_(barrier) {
  for (const size_t i : which_) elements_ += all_[i].tensor.numel();
}

FlatParameters::FlatParameters(std::span<const mesh::NamedTensor> all, mesh::WriteBarrier* barrier)
    : FlatParameters(all, every(all.size()), barrier) {}

at::TensorOptions FlatParameters::options() const {
  return (all_.empty() ? at::TensorOptions() : all_.front().tensor.options()).dtype(at::kFloat);
}

at::Tensor FlatParameters::zeros() const { return at::zeros({elements_}, options()); }

at::Tensor FlatParameters::flatten() const {
  at::Tensor flat = at::empty({elements_}, options());
  int64_t at = 0;
  for (const size_t i : which_) {
    const at::Tensor& tensor = all_[i].tensor;
    flat.narrow(0, at, tensor.numel()).copy_(tensor.view({-1}));
    at += tensor.numel();
  }
  return flat;
}

void FlatParameters::assign(const at::Tensor& flat) const {
  int64_t at = 0;
  for (const size_t i : which_) {
    const at::Tensor& tensor = all_[i].tensor;
    mesh::before_write(barrier_, tensor);
    tensor.view({-1}).copy_(flat.narrow(0, at, tensor.numel()));
    at += tensor.numel();
  }
}

void FlatParameters::views(const at::Tensor& flat, std::vector<at::Tensor>& into) const {
  int64_t at = 0;
  for (const size_t i : which_) {
    const int64_t count = all_[i].tensor.numel();
    if (flat.defined()) into[i] = flat.narrow(0, at, count).view(all_[i].tensor.sizes());
    at += count;
  }
}

std::vector<at::Tensor> FlatParameters::views(const at::Tensor& flat) const {
  std::vector<at::Tensor> all(all_.size());
  views(flat, all);
  return all;
}

double relative_norm(const at::Tensor& difference, const at::Tensor& to) {
  const double size = to.norm().item<double>();
  return size > 0 ? difference.norm().item<double>() / size : 0;
}

double cosine(const at::Tensor& a, const at::Tensor& b) {
  const double sizes = a.norm().item<double>() * b.norm().item<double>();
  return sizes > 0 ? a.mul(b).sum().item<double>() / sizes : 0;
}

}  // namespace cairn::sync
