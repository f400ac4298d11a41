// The list of samplers. A new one is a source beside this file, its `make_x` declared below, and one line in the list.
#include <array>

#include "base/did_you_mean.h"
#include "data/sampler.h"

namespace cairn::data {

// Each is defined in the source that has its name.
std::unique_ptr<Sampler> make_shuffled(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_sequential(const SamplerFacts& facts);

namespace {

struct SamplerEntry {
  const char* name;
  std::unique_ptr<Sampler> (*make)(const SamplerFacts&);
};

constexpr std::array kSamplers = {
    SamplerEntry{"shuffled", make_shuffled},
    SamplerEntry{"sequential", make_sequential},
};

}  // namespace

std::unique_ptr<Sampler> make_sampler(const std::string& name, const SamplerFacts& facts) {
  for (const SamplerEntry& entry : kSamplers)
    if (name == entry.name) return entry.make(facts);
  base::fail_unknown("data.sampler", name, sampler_names());
}

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const SamplerEntry& entry : kSamplers) names.emplace_back(entry.name);
  return names;
}

}  // namespace cairn::data
