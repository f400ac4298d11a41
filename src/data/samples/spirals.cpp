#include "data/samples/spirals.h"

#include <cmath>
#include <numbers>

#include "base/random.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

class Spirals final : public Dataset {
 public:
  explicit Spirals(const SpiralOptions& options)
      : options_(options), held_out_(static_cast<int64_t>(static_cast<double>(options.samples) * options.held_out_fraction)) {}

  SampleRange training() const override { return {0, options_.samples - held_out_}; }
  SampleRange held_out() const override { return {options_.samples - held_out_, held_out_}; }
  int64_t tokens_in(int64_t) const override { return 1; }

  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override {
    const auto n = static_cast<int64_t>(ids.size());
    batch.ids = at::empty({n}, at::kLong);
    at::Tensor features = at::empty({n, 2}, at::kFloat), labels = at::empty({n}, at::kLong);
    const base::Random random = base::Random(options_.seed).for_purpose("spirals");
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)], label = id % options_.classes;
      const base::Random of_sample = random.for_index(static_cast<uint64_t>(id));
      const double radius = 0.1 + 0.9 * of_sample.uniform(0);
      const base::Random shake = of_sample.for_purpose("noise");
      const double angle = 2 * std::numbers::pi * (radius * 1.25 + static_cast<double>(label) / static_cast<double>(options_.classes));
      batch.ids.data_ptr<int64_t>()[i] = id;
      features.data_ptr<float>()[2 * i] = static_cast<float>(radius * std::cos(angle) + options_.noise * shake.normal(0));
      features.data_ptr<float>()[2 * i + 1] = static_cast<float>(radius * std::sin(angle) + options_.noise * shake.normal(1));
      labels.data_ptr<int64_t>()[i] = label;
    }
    batch.fields["features"] = {features};
    batch.fields["labels"] = {labels};
  }

 private:
  SpiralOptions options_;
  int64_t held_out_;
};

}  // namespace

std::unique_ptr<Dataset> make_spirals(const SpiralOptions& options) { return std::make_unique<Spirals>(options); }

}  // namespace cairn::data
