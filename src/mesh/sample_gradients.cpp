// The signs of R come from a hash (the finalizer of SplitMix64) of the entry and of the word of 64 columns: one word gives 64 signs.
//
//   word(e, w) = mix(key + (e 2^16 + w) 0x9e3779b97f4a7c15),   sign of column 64 w + b = bit b of the word
//
// CPUs make them in a loop, GPUs by integer operations on tensors.
#include "mesh/sample_gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <ATen/ops/_unique.h>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"

namespace cairn::mesh {
namespace {

constexpr int64_t kWordBits = 64, kWordsShift = 16;
constexpr int64_t kBlockElements = 1 << 22;     // of R at a time
constexpr int64_t kGradientElements = 1 << 23;  // of the gradients of all samples at a time
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15, kMix1 = 0xbf58476d1ce4e5b9, kMix2 = 0x94d049bb133111eb;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * kMix1;
  x = (x ^ (x >> 27)) * kMix2;
  return x ^ (x >> 31);
}

at::Tensor mixed(at::Tensor x) {
  const auto shifted = [](const at::Tensor& t, int64_t by) {
    return t.bitwise_right_shift(by).bitwise_and_((int64_t{1} << (kWordBits - by)) - 1);
  };
  x = x.bitwise_xor(shifted(x, 30)).mul_(static_cast<int64_t>(kMix1));
  x = x.bitwise_xor(shifted(x, 27)).mul_(static_cast<int64_t>(kMix2));
  return x.bitwise_xor(shifted(x, 31));
}

uint64_t key_of(const std::string& name, uint64_t seed) { return base::Random(seed).for_purpose("projection").for_name(name).bits64(0); }

at::Tensor rows_on_cpu(uint64_t key, int64_t dim, const at::Tensor& entries) {
  at::Tensor rows = at::empty({entries.numel(), dim}, at::kFloat);
  const auto magnitude = std::bit_cast<uint32_t>(static_cast<float>(1 / std::sqrt(static_cast<double>(dim))));
  const int64_t* const entry = entries.const_data_ptr<int64_t>();
  auto* const out = reinterpret_cast<uint32_t*>(rows.data_ptr<float>());
  at::parallel_for(0, entries.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t w = 0; w < dim / kWordBits; ++w) {
        const uint64_t word = mix(key + ((static_cast<uint64_t>(entry[i]) << kWordsShift) + static_cast<uint64_t>(w)) * kGolden);
        uint32_t* const to = out + i * dim + w * kWordBits;
        const auto low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
        for (uint32_t b = 0; b < 32; ++b) to[b] = magnitude | (((low >> b) & 1U) << 31);
        for (uint32_t b = 0; b < 32; ++b) to[32 + b] = magnitude | (((high >> b) & 1U) << 31);
      }
  });
  return rows;
}

at::Tensor rows_on_device(uint64_t key, int64_t dim, const at::Tensor& entries) {
  const at::TensorOptions whole = entries.options();
  const at::Tensor words = mixed(((entries.unsqueeze(1) * (int64_t{1} << kWordsShift)) + at::arange(dim / kWordBits, whole))
                                     .mul_(static_cast<int64_t>(kGolden))
                                     .add_(static_cast<int64_t>(key)));
  const at::Tensor bits = words.unsqueeze(2).bitwise_right_shift(at::arange(kWordBits, whole)).bitwise_and_(1);
  const double magnitude = static_cast<double>(static_cast<float>(1 / std::sqrt(static_cast<double>(dim))));
  return bits.view({entries.numel(), dim}).to(at::kFloat).mul_(-2 * magnitude).add_(magnitude);
}

int64_t rows_of(const SampledParameter& parameter) { return parameter.part.local_shape().front(); }

// The indices in the whole parameter of this rank's part along a dim.
at::Tensor indices_along(const SampledParameter& parameter, size_t dim, const at::TensorOptions& options) {
  std::vector<at::Tensor> pieces;
  for (const Interval& one : parameter.part.dims[dim]) pieces.push_back(at::arange(one.begin, one.end, options));
  return at::cat(pieces);
}

}  // namespace

at::Tensor projection_rows(const std::string& name, const SampleProjection& projection, const at::Tensor& entries) {
  const uint64_t key = key_of(name, projection.seed);
  return entries.is_cpu() ? rows_on_cpu(key, projection.dim, entries.contiguous()) : rows_on_device(key, projection.dim, entries);
}

SampleGradients::SampleGradients(std::vector<SampledParameter> parameters, SampleProjection projection,
                                 std::function<void(const at::Tensor&)> sum_terms)
    : parameters_(std::move(parameters)), projection_(projection), sum_terms_(std::move(sum_terms)) {
  CAIRN_CHECK(projection_.dim > 0 && projection_.dim % kProjectionBlock == 0 && projection_.dim < (int64_t{64} << kWordsShift),
              "a projection to {} numbers", projection_.dim);
  for (const SampledParameter& one : parameters_)
    if (one.chosen && one.shape.size() > 2)
      base::fail_input("{}: gradients by sample are for matrices, and it has {} dims (experts). Choose weights of other layers.", one.name,
                       one.shape.size());
}

void SampleGradients::begin(int64_t samples, at::Device device, at::Tensor row_weights) {
  samples_ = samples;
  inputs_ = at::Tensor();
  row_weights_ = std::move(row_weights);
  projected_ = at::zeros({samples, projection_.dim}, at::TensorOptions(at::kFloat).device(device));
  squares_ = at::zeros({samples}, projected_.options());
}

void SampleGradients::outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) {
  int64_t begin = 0;
  for (int32_t i = id.first; i < id.first + id.count; ++i) {  // neighbours are one taller matrix
    const SampledParameter& parameter = parameters_.at(static_cast<size_t>(i));
    const int64_t rows = id.count == 1 ? dout.size(1) : rows_of(parameter);
    if (parameter.hidden_inputs) take_inputs(in);
    if (parameter.chosen) add_outer(parameter, in, dout.narrow(1, begin, rows));
    begin += rows;
  }
}

void SampleGradients::take_inputs(const at::Tensor& in) {
  const at::Tensor x = kernels::widened(in).reshape({samples_, -1, in.size(1)});
  if (!row_weights_.defined()) {
    inputs_ = x.mean(1);
    return;
  }
  const at::Tensor weights = row_weights_.to(at::kFloat).reshape({samples_, -1, 1});
  inputs_ = (x * weights).sum(1) / weights.sum(1).clamp_min(1e-12);
}

void SampleGradients::add_outer(const SampledParameter& parameter, const at::Tensor& in, const at::Tensor& dout) {
  CAIRN_CHECK(samples_ > 0 && in.size(0) % samples_ == 0, "{}: {} rows of {} samples", parameter.name, in.size(0), samples_);
  const int64_t length = in.size(0) / samples_, outputs = dout.size(1), columns = in.size(1);
  const at::Tensor x = kernels::widened(in).reshape({samples_, length, columns}), dy = kernels::widened(dout);
  const int64_t at_once = std::max<int64_t>(1, kGradientElements / (samples_ * columns));
  for (int64_t first = 0; first < outputs; first += at_once) {
    const int64_t count = std::min(at_once, outputs - first);
    const at::Tensor part = dy.narrow(1, first, count).reshape({samples_, length, count}).transpose(1, 2);
    add_part(parameter, length == 1 ? part * x : at::matmul(part, x), first);
  }
}

void SampleGradients::add_sum(ParamId id, const at::Tensor& rows) {
  int64_t begin = 0;
  for (int32_t i = id.first; i < id.first + id.count; ++i) {
    const SampledParameter& parameter = parameters_.at(static_cast<size_t>(i));
    const int64_t width = id.count == 1 ? rows.size(1) : rows_of(parameter);
    if (parameter.chosen) {
      CAIRN_CHECK(samples_ > 0 && rows.size(0) % samples_ == 0, "{}: {} rows of {} samples", parameter.name, rows.size(0), samples_);
      const at::Tensor by_sample = kernels::widened(rows.narrow(1, begin, width)).reshape({samples_, -1, width}).sum(1);
      add_part(parameter, by_sample.unsqueeze(2), 0);
    }
    begin += width;
  }
}

void SampleGradients::add(ParamId id, const at::Tensor& gradient) {
  int64_t begin = 0;
  for (int32_t i = id.first; i < id.first + id.count; ++i) {
    const SampledParameter& parameter = parameters_.at(static_cast<size_t>(i));
    const int64_t rows = id.count == 1 ? gradient.size(0) : rows_of(parameter);
    if (parameter.chosen) {
      if (samples_ != 1)
        base::fail_input("{}: its gradient is made for all samples together. Choose weights of linear layers, or passes of one sample.",
                         parameter.name);
      add_part(parameter, kernels::widened(gradient.narrow(0, begin, rows)).reshape({1, rows, -1}), 0);
    }
    begin += rows;
  }
}

void SampleGradients::add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) {
  const SampledParameter& parameter = parameters_.at(static_cast<size_t>(id.first));
  if (!parameter.chosen) return;
  CAIRN_CHECK(samples_ > 0 && rows.numel() % samples_ == 0, "{}: {} rows of {} samples", parameter.name, rows.numel(), samples_);
  if (parameter.summed)
    base::fail_input("{}: ranks have parts of its gradient. Choose weights of linear layers, or mesh.tp = 1.", parameter.name);
  const int64_t length = rows.numel() / samples_, columns = values.size(1);
  const at::Tensor wide = kernels::widened(values);
  for (int64_t s = 0; s < samples_; ++s) {  // a table's gradient is sparse: only the rows that the sample reads
    const auto [read, places] = at::_unique(rows.narrow(0, s * length, length), /*sorted=*/true, /*return_inverse=*/true);
    const at::Tensor sums =
        at::zeros(at::IntArrayRef{read.numel(), columns}, wide.options()).index_add_(0, places, wide.narrow(0, s * length, length));
    const at::Tensor in_table = indices_along(parameter, 0, read.options()).index_select(0, read);
    const at::Tensor entries = (in_table.unsqueeze(1) * parameter.shape[1] + indices_along(parameter, 1, read.options())).flatten();
    squares_.narrow(0, s, 1).add_(sums.square().sum());
    projected_.narrow(0, s, 1).addmm_(sums.reshape({1, -1}), projection_rows(parameter.name, projection_, entries));
  }
}

void SampleGradients::add_part(const SampledParameter& parameter, at::Tensor part, int64_t first) {
  if (parameter.summed && sum_terms_) {
    part = part.contiguous();
    sum_terms_(part);
    if (!parameter.counts) return;
  }
  const int64_t rows = part.size(1), columns = part.size(2);
  const at::TensorOptions whole = projected_.options().dtype(at::kLong);
  at::Tensor entries = indices_along(parameter, 0, whole).narrow(0, first, rows);
  if (parameter.shape.size() == 2) entries = (entries.unsqueeze(1) * parameter.shape[1] + indices_along(parameter, 1, whole)).flatten();
  squares_.add_(part.square().sum({1, 2}));
  project(parameter, part.reshape({samples_, rows * columns}), entries);
}

void SampleGradients::project(const SampledParameter& parameter, const at::Tensor& flat, const at::Tensor& entries) {
  const int64_t at_once = std::max<int64_t>(1, kBlockElements / projection_.dim);
  for (int64_t first = 0; first < entries.numel(); first += at_once) {
    const int64_t count = std::min(at_once, entries.numel() - first);
    projected_.addmm_(flat.narrow(1, first, count), projection_rows(parameter.name, projection_, entries.narrow(0, first, count)));
  }
}

}  // namespace cairn::mesh
