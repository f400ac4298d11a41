#include "proofs/concept_points.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/selection/quota.h"
#include "kernels/aten.h"

namespace cairn::study {
namespace {

std::vector<float> unit_point(const base::Random& random) {
  std::vector<float> x(kConceptDims);
  random.fill_normal(x);
  float square = 0;
  for (const float one : x) square += one * one;
  for (float& one : x) one /= std::sqrt(square);
  return x;
}

}  // namespace

ConceptPoints::ConceptPoints(uint64_t seed) : random_(base::Random(seed).for_purpose("concepts")) {
  for (int64_t c = 0; c < kConcepts; ++c) {
    centres_.push_back(unit_point(random_.for_name("centre").for_index(static_cast<uint64_t>(c))));
    planes_.push_back(unit_point(random_.for_name("plane").for_index(static_cast<uint64_t>(c))));
  }
  std::vector<double> weights;
  std::vector<int64_t> room(kConcepts, kConceptPoints);
  for (int64_t c = 0; c < kConcepts; ++c) weights.push_back(1.0 / (1.0 + static_cast<double>(order_of(c))));
  const std::vector<int64_t> sizes = data::capped_shares(weights, room, kConceptPoints, random_);
  std::vector<int64_t> tests(kConcepts, kConceptTestPoints / kConcepts);
  training = draw(sizes, "training");
  test = draw(tests, "test");
}

at::Tensor ConceptPoints::vectors() const {
  const at::Tensor rows = at::empty({static_cast<int64_t>(training.x.size()), kConceptDims});
  for (size_t i = 0; i < training.x.size(); ++i)
    std::ranges::copy(training.x[i], rows.mutable_data_ptr<float>() + static_cast<int64_t>(i) * kConceptDims);
  return rows / rows.norm(2, 1, true);
}

// The rank of a concept by size: dense and spread out ones in a random order.
int64_t ConceptPoints::order_of(int64_t concept_number) const {
  std::vector<std::pair<double, int64_t>> keyed;
  for (int64_t c = 0; c < kConcepts; ++c) keyed.emplace_back(random_.for_name("order").uniform(static_cast<uint64_t>(c)), c);
  std::ranges::sort(keyed);
  for (size_t i = 0; i < keyed.size(); ++i)
    if (keyed[i].second == concept_number) return static_cast<int64_t>(i);
  return 0;
}

ConceptPoints::Points ConceptPoints::draw(const std::vector<int64_t>& sizes, const std::string& name) const {
  Points points;
  for (int64_t c = 0; c < kConcepts; ++c) {
    const auto at = static_cast<size_t>(c);
    const bool spread = c % 2 == 1;
    for (int64_t i = 0; i < sizes[at]; ++i) {
      const base::Random one = random_.for_name(name).for_index(static_cast<uint64_t>(c)).for_index(static_cast<uint64_t>(i));
      std::vector<float> x(kConceptDims);
      one.fill_normal(x);
      float side = 0;
      for (size_t d = 0; d < kConceptDims; ++d) {
        x[d] *= spread ? 0.16f : 0.04f;
        side += x[d] * planes_[at][d];
        x[d] += centres_[at][d];
      }
      points.x.push_back(x);
      points.labels.push_back(2 * c + (spread && side > 0 ? 1 : 0));
      points.concepts.push_back(c);
    }
  }
  return points;
}

std::vector<int64_t> numbers_up_to(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace cairn::study
