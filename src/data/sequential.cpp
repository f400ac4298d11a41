#include "data/sequential.h"

#include "data/epochs.h"

namespace cairn::data {
namespace {

class Sequential final : public Sampler {
 public:
  explicit Sequential(const SamplerFacts& facts) : epochs_(facts) {}

  std::vector<int64_t> ids(int64_t step) const override {
    const Subset& from = epochs_.facts.from;
    std::vector<int64_t> ids;
    ids.reserve(epochs_.facts.global_batch);
    for (int64_t draw = epochs_.first_draw(step); draw < epochs_.first_draw(step + 1); ++draw) ids.push_back(from.id(draw % from.size()));
    return ids;
  }

  double progress(int64_t step) const override { return epochs_.progress(step); }
  double epoch(int64_t step) const override { return epochs_.epoch(step); }

 private:
  Epochs epochs_;
};

}  // namespace

std::unique_ptr<Sampler> make_sequential(const SamplerFacts& facts) { return std::make_unique<Sequential>(facts); }

}  // namespace cairn::data
