// The pilot: experts with one hidden layer on three domains of Gaussians, at one total of compute.
#include <array>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "proofs/hdee_parts.h"

namespace cairn::study {
namespace {

constexpr int64_t kClasses = 10, kFeatures = 16, kBatch = 32, kTest = 4000;
constexpr double kNoise = 0.5, kRate = 3e-3;
constexpr int kSeeds = 4;
constexpr std::array<int64_t, 3> kModes{1, 4, 16};  // Gaussians of a class: easy, medium, hard

at::Tensor normal(const base::Random& random, const std::vector<int64_t>& shape) {
  const at::Tensor values = at::empty(shape, at::kFloat);
  random.fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return values;
}

struct Examples {
  at::Tensor x, y;
};

// Classes that are a few Gaussians each.
class Gaussians {
 public:
  Gaussians(base::Random random, int64_t modes)
      : random_(random), modes_(modes), means_(normal(random.for_purpose("means"), {kClasses * modes, kFeatures})) {}

  Examples draw(uint64_t batch, int64_t count) const {
    const base::Random own = random_.for_purpose("draw").for_index(batch);
    std::vector<int64_t> which(static_cast<size_t>(count));
    for (size_t i = 0; i < which.size(); ++i)
      which[i] = static_cast<int64_t>(own.for_purpose("mode").below(i, static_cast<uint64_t>(kClasses * modes_)));
    const at::Tensor mode = at::tensor(which, at::kLong);
    return {means_.index_select(0, mode) + kNoise * normal(own.for_purpose("noise"), {count, kFeatures}), mode.div(modes_, "floor")};
  }

 private:
  base::Random random_;
  int64_t modes_;
  at::Tensor means_;
};

// One hidden layer, Adam with a rate that falls as a cosine. Gradients by hand.
class Classifier {
 public:
  Classifier(base::Random random, int64_t width) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, double deviation) {
      weights_.push_back(normal(random.for_name(name), shape) * deviation);
      first_.push_back(at::zeros(shape, at::kFloat)), second_.push_back(at::zeros(shape, at::kFloat));
    };
    add("in", {kFeatures, width}, std::sqrt(2.0 / kFeatures));
    add("in bias", {width}, 0);
    add("out", {width, kClasses}, std::sqrt(1.0 / static_cast<double>(width)));
    add("out bias", {kClasses}, 0);
  }

  int64_t parameters() const {
    int64_t sum = 0;
    for (const at::Tensor& weight : weights_) sum += weight.numel();
    return sum;
  }

  void step(const Examples& batch, double rate) {
    const at::Tensor hidden = hidden_of(batch.x);
    at::Tensor dlogits = at::log_softmax(logits_of(hidden), -1).exp_();
    dlogits.scatter_add_(1, batch.y.unsqueeze(1), at::full({batch.y.size(0), 1}, -1.0, at::kFloat));
    dlogits.div_(static_cast<double>(batch.y.size(0)));
    const at::Tensor dhidden = dlogits.mm(weights_[2].t()) * hidden.gt(0);
    update({batch.x.t().mm(dhidden), dhidden.sum(0), hidden.t().mm(dlogits), dlogits.sum(0)}, rate);
  }

  double loss(const Examples& test) const {
    return -at::log_softmax(logits_of(hidden_of(test.x)), -1).gather(1, test.y.unsqueeze(1)).mean().item<double>();
  }

 private:
  at::Tensor hidden_of(const at::Tensor& x) const { return (x.mm(weights_[0]) + weights_[1]).clamp_min_(0); }
  at::Tensor logits_of(const at::Tensor& hidden) const { return hidden.mm(weights_[2]) + weights_[3]; }

  void update(const std::vector<at::Tensor>& gradients, double rate) {
    constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;
    ++steps_;
    const double bias1 = 1 - std::pow(kBeta1, steps_), bias2 = 1 - std::pow(kBeta2, steps_);
    for (size_t i = 0; i < gradients.size(); ++i) {
      first_[i].mul_(kBeta1).add_(gradients[i], 1 - kBeta1);
      second_[i].mul_(kBeta2).addcmul_(gradients[i], gradients[i], 1 - kBeta2);
      weights_[i].addcdiv_(first_[i], (second_[i] / bias2).sqrt_().add_(kEps), -rate / bias1);
    }
  }

  std::vector<at::Tensor> weights_, first_, second_;
  double steps_ = 0;
};

struct Spent {
  double loss = 0, flops = 0;
};

Spent train(const base::Random& random, int64_t modes, int64_t width, int64_t steps) {
  const Gaussians domain(random.for_purpose("domain").for_index(static_cast<uint64_t>(modes)), modes);
  Classifier expert(random.for_purpose("expert").for_index(static_cast<uint64_t>(modes)), width);
  for (int64_t step = 0; step < steps; ++step)
    expert.step(domain.draw(static_cast<uint64_t>(step), kBatch),
                kRate * 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps))));
  return {expert.loss(domain.draw(1'000'000'000, kTest)), 6.0 * static_cast<double>(expert.parameters() * steps * kBatch)};
}

struct Ensemble {
  const char* name;
  std::array<int64_t, 3> widths, steps;
};

}  // namespace

void prove_hdee_gaussians(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr std::array<Ensemble, 3> kEnsembles{Ensemble{"uniform", {64, 64, 64}, {800, 800, 800}},
                                               Ensemble{"sizes", {24, 64, 104}, {800, 800, 800}},
                                               Ensemble{"steps", {64, 64, 64}, {300, 800, 1300}}};
  std::array<double, 3> means{}, flops{};
  for (size_t e = 0; e < kEnsembles.size(); ++e) {
    std::array<double, 3> losses{};
    for (int seed = 0; seed < kSeeds; ++seed)
      for (size_t d = 0; d < 3; ++d) {
        const base::Random random = base::Random(options.seed).for_purpose("gaussians").for_index(static_cast<uint64_t>(seed));
        const Spent spent = train(random, kModes[d], kEnsembles[e].widths[d], kEnsembles[e].steps[d]);
        losses[d] += spent.loss / kSeeds;
        flops[e] += spent.flops;
      }
    means[e] = (losses[0] + losses[1] + losses[2]) / 3;
    log.info("Gaussians, {}: held-out loss easy {:.4f}, medium {:.4f}, hard {:.4f}, mean {:.4f}", kEnsembles[e].name, losses[0], losses[1],
             losses[2], means[e]);
  }
  for (size_t e = 1; e < kEnsembles.size(); ++e) {
    findings.at_most(
        fmt::format("pilot, Gaussians, {} / uniform: mean held-out loss of three domains, {} seeds", kEnsembles[e].name, kSeeds), 1,
        means[e] / means[0], 0.97);
    findings.at_most(fmt::format("pilot, Gaussians, {}: off the FLOPs of uniform, share", kEnsembles[e].name), 0,
                     std::abs(flops[e] / flops[0] - 1), 0.01);
  }
}

}  // namespace cairn::study
