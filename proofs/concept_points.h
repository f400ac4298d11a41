// Points of concepts of unlike complexity, which the proof of concept pruning prunes and trains on.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "study/claims.h"

namespace cairn::study {

inline constexpr int64_t kConcepts = 40, kConceptDims = 32, kConceptPoints = 12'000, kConceptTestPoints = 4000, kTenthOfPoints = 1200;

// 12,000 points of 40 concepts in 32 dims with Zipf-like sizes. Even concepts are dense and have one class; odd ones are spread out and
// have two, on the two sides of a hyperplane through the centre. Test points are balanced over concepts.
class ConceptPoints {
 public:
  explicit ConceptPoints(uint64_t seed);

  struct Points {
    std::vector<std::vector<float>> x;
    std::vector<int64_t> labels, concepts;
  };
  Points training, test;

  at::Tensor vectors() const;  // of the training points, of unit length

 private:
  int64_t order_of(int64_t concept_number) const;
  Points draw(const std::vector<int64_t>& sizes, const std::string& name) const;

  base::Random random_;
  std::vector<std::vector<float>> centres_, planes_;
};

std::vector<int64_t> numbers_up_to(int64_t count);

// Quotas against an optimum found by force; duplicates that were planted, also as a cluster ten times its size (concept_quotas.cpp).
void prove_concept_quotas(const ProofOptions& options, Findings& findings);

}  // namespace cairn::study
