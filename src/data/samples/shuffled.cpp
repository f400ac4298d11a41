// Every sample once per epoch, in a new random order each time. The order of an epoch is a permutation keyed by (seed, stream, epoch) and
// evaluated at any place in O(1) (base/random/permutation.h), so no order is stored and any step can be computed alone. A batch may span
// two epochs.
#include <optional>

#include "base/random.h"
#include "base/random/permutation.h"
#include "data/sampler.h"
#include "data/samples/epochs.h"

namespace cairn::data {
namespace {

class Shuffled final : public Sampler {
 public:
  explicit Shuffled(const SamplerFacts& facts) : epochs_(facts), random_(base::Random(facts.seed).for_purpose("data.shuffled")) {}

  std::vector<int64_t> ids(int64_t step) const override {
    struct Order {
      int64_t epoch = -1;
      std::optional<base::Permutation> places;
    };
    std::vector<Order> orders(static_cast<size_t>(epochs_.streams()));  // of the current epoch of each stream
    std::vector<int64_t> ids;
    ids.reserve(static_cast<size_t>(epochs_.facts().global_batch));
    for (int64_t draw = epochs_.first_draw(step); draw < epochs_.first_draw(step + 1); ++draw) {
      const Epochs::Place at = epochs_.place(draw);
      Order& order = orders[static_cast<size_t>(at.stream)];
      if (order.epoch != at.epoch) {
        order.epoch = at.epoch;
        order.places.emplace(static_cast<uint64_t>(epochs_.size(at.stream)),
                             random_of(at.stream).for_index(static_cast<uint64_t>(at.epoch)));
      }
      ids.push_back(epochs_.id(at.stream, static_cast<int64_t>(order.places->at(static_cast<uint64_t>(at.place)))));
    }
    return ids;
  }

  int64_t steps() const override { return epochs_.steps(); }
  double progress(int64_t step) const override { return epochs_.progress(step); }
  double epoch(int64_t step) const override { return epochs_.epoch(step); }
  std::vector<int64_t> positions(int64_t step) const override { return epochs_.positions(step); }

 private:
  base::Random random_of(int64_t stream) const {
    return stream == 0 ? random_ : random_.for_name("stream").for_index(static_cast<uint64_t>(stream));
  }

  Epochs epochs_;
  base::Random random_;
};

}  // namespace

std::unique_ptr<Sampler> make_shuffled(const SamplerFacts& facts) { return std::make_unique<Shuffled>(facts); }

}  // namespace cairn::data
