// The list of samplers. A new one is a source beside this file, its `make_x` declared below, and one line in the list.
#include <algorithm>
#include <vector>

#include "base/did_you_mean.h"
#include "data/sampler.h"

namespace cairn::data {

// Each is defined in the source that has its name.
std::unique_ptr<Sampler> make_shuffled(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_sequential(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_rs2(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_seta(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_infobatch(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_tas(const SamplerFacts& facts);
std::unique_ptr<Sampler> make_multigrid(const SamplerFacts& facts);

namespace {

struct SamplerEntry {
  const char* name;
  std::unique_ptr<Sampler> (*make)(const SamplerFacts&);
  SamplerNeeds needs = {};
};

constexpr SamplerEntry kSamplers[] = {
    {"shuffled", make_shuffled},
    {"sequential", make_sequential},
    {"rs2", make_rs2},
    {"seta", make_seta, {.losses = true, .epochs = true, .whole_batch = true}},
    {"infobatch", make_infobatch, {.losses = true, .epochs = true, .whole_batch = true}},
    {"tas", make_tas, {.whole_batch = true, .retrieval = true}},
    {"multigrid", make_multigrid, {.epochs = true, .whole_batch = true, .clips = true}},
};

const SamplerEntry& entry_of(const std::string& name) {
  const auto found = std::find_if(std::begin(kSamplers), std::end(kSamplers), [&](const SamplerEntry& one) { return name == one.name; });
  if (found == std::end(kSamplers)) base::fail_unknown("data.sampler", name, sampler_names());
  return *found;
}

}  // namespace

std::unique_ptr<Sampler> make_sampler(const std::string& name, const SamplerFacts& facts) { return entry_of(name).make(facts); }

const SamplerNeeds& sampler_needs(const std::string& name) { return entry_of(name).needs; }

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const SamplerEntry& entry : kSamplers) names.emplace_back(entry.name);
  return names;
}

}  // namespace cairn::data
