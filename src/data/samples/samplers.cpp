#include <array>

#include "base/did_you_mean.h"
#include "data/sampler.h"
#include "data/samples/sequential.h"
#include "data/samples/shuffled.h"

namespace cairn::data {
namespace {

struct Known {
  const char* name;
  std::unique_ptr<Sampler> (*make)(const SamplerFacts&);
};

constexpr std::array kSamplers = {
    Known{"shuffled", make_shuffled},
    Known{"sequential", make_sequential},
};

}  // namespace

std::unique_ptr<Sampler> make_sampler(const std::string& name, const SamplerFacts& facts) {
  for (const Known& known : kSamplers)
    if (name == known.name) return known.make(facts);
  base::fail_unknown("data.sampler", name, sampler_names());
}

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const Known& known : kSamplers) names.emplace_back(known.name);
  return names;
}

}  // namespace cairn::data
