// Every sample once per epoch, in the order of the corpus.
#include "data/sampler.h"
#include "data/samples/epochs.h"

namespace cairn::data {
namespace {

class Sequential final : public Sampler {
 public:
  explicit Sequential(const SamplerFacts& facts) : epochs_(facts) {}

  std::vector<int64_t> ids(int64_t step) const override {
    std::vector<int64_t> ids;
    ids.reserve(static_cast<size_t>(epochs_.facts().global_batch));
    for (int64_t draw = epochs_.first_draw(step); draw < epochs_.first_draw(step + 1); ++draw) {
      const Epochs::Place at = epochs_.place(draw);
      ids.push_back(epochs_.id(at.stream, at.place));
    }
    return ids;
  }

  int64_t steps() const override { return epochs_.steps(); }
  double progress(int64_t step) const override { return epochs_.progress(step); }
  double epoch(int64_t step) const override { return epochs_.epoch(step); }
  std::vector<int64_t> positions(int64_t step) const override { return epochs_.positions(step); }

 private:
  Epochs epochs_;
};

}  // namespace

std::unique_ptr<Sampler> make_sequential(const SamplerFacts& facts) { return std::make_unique<Sequential>(facts); }

}  // namespace cairn::data
