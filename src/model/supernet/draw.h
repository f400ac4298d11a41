// Which subnets a step trains.
#pragma once
#include "base/random.h"
#include "model/supernet/elastic_shape.h"
#include "model/supernet/options.h"

namespace cairn::model {

Subnet smallest_subnet(const SubnetChoices& choices, const ElasticShape& shape);
// A subnet drawn at random, a function of `random` alone.
Subnet draw_subnet(const SubnetChoices& choices, const ElasticShape& shape, SubnetSampling sampling, const base::Random& random);

// The share of the whole model's work that a subnet takes on average, and the smallest one, as far as the recipe alone tells.
struct SubnetShares {
  double smallest = 1, mean = 1;
};
SubnetShares subnet_shares(const SupernetOptions& options);

}  // namespace cairn::model
