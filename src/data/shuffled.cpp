#include "data/shuffled.h"

#include <optional>

#include "base/permutation.h"
#include "base/random.h"
#include "data/epochs.h"

namespace cairn::data {
namespace {

class Shuffled final : public Sampler {
 public:
  explicit Shuffled(const SamplerFacts& facts) : epochs_(facts), random_(base::Random(facts.seed).for_purpose("data.shuffled")) {}

  std::vector<int64_t> ids(int64_t step) const override {
    const Subset& from = epochs_.facts.from;
    std::vector<int64_t> ids;
    ids.reserve(epochs_.facts.global_batch);
    std::optional<base::Permutation> order;
    for (int64_t draw = epochs_.first_draw(step); draw < epochs_.first_draw(step + 1); ++draw) {
      const int64_t place = draw % from.size();
      if (!order || place == 0) order.emplace(from.size(), random_.for_index(draw / from.size()));
      ids.push_back(from.id(static_cast<int64_t>(order->at(place))));
    }
    return ids;
  }

  double progress(int64_t step) const override { return epochs_.progress(step); }
  double epoch(int64_t step) const override { return epochs_.epoch(step); }

 private:
  Epochs epochs_;
  base::Random random_;
};

}  // namespace

std::unique_ptr<Sampler> make_shuffled(const SamplerFacts& facts) { return std::make_unique<Shuffled>(facts); }

}  // namespace cairn::data
