// One byte per slope ("Just One Byte (per gradient)", Zelikman et al. 2023, arXiv 2306.09739): zeroth-order SGD whose messages do not
// depend on the size of the model.
//
//   u(t, m, k)  random direction of round t, machine m, sample k, drawn from a shared key          `direction`
//   s = (L(w + eps u) - L(w - eps u)) / (2 eps)                                                    `measure`; L on a batch of machine m
//   w <- keep * w - rate / W * sum over m, k of a_m s(m, k) u(t, m, k)                             `apply`; W = sum of all a_m
//
// A machine sends its slopes s only, one byte each (code.h); everyone draws the directions again. a_m is the machine's `weight`; with
// `scale` = sqrt the divisor is sqrt(W). Weight decay is in `keep`, for matrices.
#include "sync/one_byte/replica.h"

#include <array>
#include <bit>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/did_you_mean.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"

namespace cairn::sync {
namespace {

std::span<const std::byte> weight_bytes(const at::Tensor& x) {
  return {static_cast<const std::byte*>(x.const_data_ptr()), static_cast<size_t>(x.nbytes())};
}

mesh::ParamId id_of(size_t place) { return {static_cast<int32_t>(place), 1}; }

// Weights perturbed along a direction, parameter by parameter, when the model reads them.
class Moved final : public model::Weights {
 public:
  Moved(const OneByteReplica& replica, uint32_t round, uint32_t machine, int64_t sample, float distance, kernels::Noise noise)
      : replica_(replica), round_(round), machine_(machine), sample_(sample), distance_(distance), noise_(noise) {}

  at::Tensor get(mesh::ParamId id) const override {
    const OneByteReplica::Model& model = replica_.model();
    at::Tensor whole = model.weights.get(id);
    bool any = false;
    for (int32_t i = id.first; i < id.first + id.count; ++i) any = any || model.trained[static_cast<size_t>(i)];
    if (!any) return whole;
    at::Tensor moved = at::empty_like(whole);
    int64_t begin = 0;
    for (int32_t i = id.first; i < id.first + id.count; ++i) {
      const auto place = static_cast<size_t>(i);
      const int64_t count = id.count == 1 ? whole.numel() : model.weights.get({i, 1}).numel();
      const at::Tensor from = whole.view({-1}).slice(0, begin, begin + count), to = moved.view({-1}).slice(0, begin, begin + count);
      begin += count;
      if (model.trained[place]) {
        perturb_shard(to, from, replica_.sharded(place), 0, {replica_.direction(round_, machine_, sample_, i), distance_}, noise_);
      } else {
        to.copy_(from);
      }
    }
    return moved;
  }
  const mesh::Placement& placement(mesh::ParamId id) const override { return replica_.model().weights.placement(id); }
  void fetch(std::span<const mesh::ParamId> ids) const override { replica_.model().weights.fetch(ids); }
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next) const override {
    replica_.model().weights.release(ids, next);
  }

 private:
  const OneByteReplica& replica_;
  uint32_t round_, machine_;
  int64_t sample_;
  float distance_;
  kernels::Noise noise_;
};

}  // namespace

void check(const OneByteOptions& options) {
  if (!(options.eps > 0)) base::fail_input("eps = {}: must be above 0; 1e-3 for whole models, 1e-2 for LoRA", options.eps);
  if (options.samples_per_round < 1 || options.samples_per_round > 65535)
    base::fail_input("samples_per_round = {}: must be from 1 to 65535", options.samples_per_round);
  if (options.hash_every < 1) base::fail_input("hash_every = {}: must be at least 1", options.hash_every);
  if (!(options.weight_decay >= 0)) base::fail_input("weight_decay = {}: must be at least 0", options.weight_decay);
  if (options.unbiased && options.code != SlopeCode::log8)
    base::fail_input("unbiased = true with code = \"{}\": only log8 is rounded", base::enum_name(kSlopeCodeNames, options.code));
}

OneByteReplica::OneByteReplica(const OneByteOptions& options, uint64_t run, Model model)
    : options_(options), run_(run), model_(std::move(model)), code_(options.code) {
  check(options);
  noise_ = options.noise;
  CAIRN_CHECK(model_.names.size() == model_.trained.size(), "{} names, {} trained or not", model_.names.size(), model_.trained.size());
}

OneByteReplica::Piece OneByteReplica::piece(size_t parameter) const {
  return model_.pieces.empty() ? Piece{model_.weights.get(id_of(parameter)), 0} : model_.pieces[parameter];
}

ShardedParameter OneByteReplica::sharded(size_t parameter) const {
  return model_.sharded.empty() ? ShardedParameter{model_.weights.get(id_of(parameter)).sizes().vec()} : model_.sharded[parameter];
}

base::Random OneByteReplica::direction(uint32_t round, uint32_t machine, int64_t sample, int64_t parameter) const {
  return base::Random(run_)
      .for_purpose("one byte")
      .for_index(machine)
      .for_index(round)
      .for_index(static_cast<uint64_t>(sample))
      .for_name(model_.names[static_cast<size_t>(parameter)]);
}

Slope OneByteReplica::measure(const LossAt& loss, uint32_t round, uint32_t machine, int64_t sample) const {
  const at::NoGradGuard no_gradients;
  const BatchKey batch{round, machine, sample};
  const auto eps = static_cast<float>(options_.eps);
  Slope slope;
  slope.above = loss(Moved(*this, round, machine, sample, eps, noise_), batch);
  slope.below = loss(Moved(*this, round, machine, sample, -eps, noise_), batch);
  slope.slope = static_cast<float>((slope.above - slope.below) / (2 * static_cast<double>(eps)));
  return slope;
}

void OneByteReplica::apply(const RoundRecord& record) {
  const at::NoGradGuard no_gradients;
  double weights = 0;
  for (const SlopeMessage& message : record.messages) weights += static_cast<double>(message.weight) * message.slopes;
  if (weights == 0) return;  // nobody had data
  const double divisor = options_.scale == SlopeScale::mean ? weights : std::sqrt(weights);
  struct Named {
    uint32_t machine;
    int64_t sample;
    float coefficient;
  };
  std::vector<Named> slopes;
  for (const SlopeMessage& message : record.messages) {
    const std::vector<float> decoded = decode_slopes(code_, message.codes, message.slopes);
    for (size_t k = 0; k < decoded.size(); ++k)
      slopes.push_back(
          {message.machine, static_cast<int64_t>(k), static_cast<float>(static_cast<double>(decoded[k]) * message.weight / divisor)});
  }
  std::vector<kernels::Direction> directions(slopes.size());
  for (size_t i = 0; i < model_.names.size(); ++i) {
    if (!model_.trained[i]) continue;
    for (size_t s = 0; s < slopes.size(); ++s)
      directions[s] = {direction(record.manifest.round, slopes[s].machine, slopes[s].sample, static_cast<int64_t>(i)),
                       slopes[s].coefficient};
    const Piece mine = piece(i);
    if (!mine.value.defined()) continue;
    const ShardedParameter whole = sharded(i);
    mesh::before_write(model_.barrier, mine.value);
    replay_shard(mine.value.view({-1}), whole, mine.begin, directions, record.manifest.rate,
                 whole.shape.size() >= 2 ? record.manifest.keep : 1.0f, noise_);
  }
}

std::vector<uint64_t> OneByteReplica::tensor_hashes() const {
  std::vector<uint64_t> hashes(model_.names.size(), 0);
  for (size_t i = 0; i < hashes.size(); ++i)
    if (const at::Tensor value = model_.trained[i] ? piece(i).value : at::Tensor(); value.defined())
      hashes[i] = base::checksum(weight_bytes(value.cpu()));
  return hashes;
}

uint64_t OneByteReplica::hash() const {
  const std::vector<uint64_t> hashes = tensor_hashes();
  return base::checksum(std::as_bytes(std::span(hashes)));
}

uint64_t OneByteReplica::fingerprint() const {
  base::Checksum sum;
  const auto add = [&](const auto& values) { sum.add(std::as_bytes(std::span(values))); };
  std::vector<float> directions(67);
  kernels::fill_direction(directions, direction(3, 5, 7, 0), 1, noise_);
  add(directions);
  std::vector<std::byte> codes(128);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
  add(decode_slopes(SlopeCode::log8, codes, 128));
  const std::array<uint64_t, 5> settings{run_, static_cast<uint64_t>(code_) * 2 + (options_.scale == SlopeScale::mean ? 0 : 1),
                                         std::bit_cast<uint64_t>(options_.eps), std::bit_cast<uint64_t>(options_.weight_decay),
                                         static_cast<uint64_t>(options_.hash_every)};
  add(settings);
  for (size_t i = 0; i < model_.names.size(); ++i)
    if (model_.trained[i]) sum.add(std::as_bytes(std::span(std::string_view(model_.names[i] + "\n"))));
  return sum.value();
}

}  // namespace cairn::sync
