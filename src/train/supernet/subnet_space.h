#pragma once
#include "base/random.h"
#include "model/supernet/draw.h"

namespace cairn::model {
class Model;
}

namespace cairn::train {

struct Job;
struct Settings;

// The subnets of a run's model: its shape, and what may be chosen.
struct SubnetSpace {
  model::ElasticShape shape;
  model::SubnetChoices choices;
  model::SubnetSampling sampling = model::SubnetSampling::random;

  model::Subnet smallest() const { return model::smallest_subnet(choices, shape); }
  model::Subnet whole() const { return model::whole_subnet(shape); }
  model::Subnet draw(const base::Random& random) const { return model::draw_subnet(choices, shape, sampling, random); }
};
SubnetSpace subnet_space(const model::Model& model, const Settings& settings);
SubnetSpace subnet_space(const Job& job);

}  // namespace cairn::train
