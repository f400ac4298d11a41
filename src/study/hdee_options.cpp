#include "study/hdee_options.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "snapshot/pretrained.h"
#include "train/settings.h"

namespace cairn::study {
namespace {

const std::vector<std::string> kModes{"uniform", "sizes", "steps", "both"};

template <typename Map>
std::vector<std::string> names_of(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, _] : map) names.push_back(name);
  return names;
}

template <typename Map>
void check_known(const char* what, const std::string& name, const Map& among) {
  if (!among.contains(name)) base::fail_unknown(what, name, names_of(among));
}

// Sections that experts do not get: the study's own, and [model], which each size defines.
bool is_own_section(std::string_view name) {
  return name == "model" || name == "study" || name.starts_with("study.") || name == "ensemble";
}
bool is_own_key(std::string_view assignment) {
  const std::string_view key = assignment.substr(0, assignment.find('='));
  return is_own_section(key.substr(0, key.rfind('.')));
}

// The name in a section header such as "[study.line.hard]"; empty for other lines.
std::string_view header_of(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string_view::npos || line[begin] != '[') return {};
  const size_t end = line.find(']', begin);
  if (end == std::string_view::npos) return {};
  std::string_view name = line.substr(begin + 1, end - begin - 1);
  for (const char c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') return {};
  return name;
}

// Replaces the lines of such sections by empty ones, so that messages keep their line numbers.
base::Recipe::File without_study(const base::Recipe::File& file) {
  base::Recipe::File kept{.text = {}, .name = file.name};
  bool own = false;
  for (size_t at = 0; at < file.text.size();) {
    const size_t end = std::min(file.text.find('\n', at), file.text.size());
    const std::string_view line(file.text.data() + at, end - at);
    if (const std::string_view header = header_of(line); !header.empty()) own = is_own_section(header);
    if (!own) kept.text += line;
    kept.text += '\n';
    at = end + 1;
  }
  return kept;
}

// Refuses a name that cannot be a folder name.
void check_name(const char* what, const std::string& name) {
  const bool plain = !name.empty() && name.size() <= 64 &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  if (!plain) base::fail_input("study.{}.{}: a folder is called after it: letters, digits, - and _, at most 64 of them", what, name);
}

template <typename T>
std::map<std::string, T> read_tables(base::Recipe& recipe, const char* what, const base::Schema<T>& schema) {
  std::map<std::string, T> found;
  const std::string section = fmt::format("study.{}", what);
  for (const std::string& name : recipe.tables_in(section)) {
    check_name(what, name);
    found[name] = recipe.read(schema.in(section + "." + name));
  }
  return found;
}

// A size takes its keys from [model], or its shape from the checkpoint that it names.
model::ModelOptions read_size(base::Recipe& recipe, const std::string& name, const model::ModelOptions& common) {
  const auto schema = model::model_schema().in("study.size." + name);
  const model::ModelOptions given = recipe.read(schema, common);
  if (given.from.empty()) return given;
  const model::ModelOptions theirs = model::options_of(snapshot::read_outline(given.from).shape, given);
  const model::ModelOptions asked = recipe.read(schema, theirs);
  const std::vector<base::Setting> ours = schema.values_of(asked), expected = schema.values_of(theirs);
  for (size_t i = 0; i < ours.size(); ++i)
    if (ours[i] != expected[i])
      base::fail_input("study.size.{}.{} = {}: its start {} has another size: {}; leave the key out, or start from another", name,
                       schema.section().entries[i].key, base::to_toml(ours[i]), given.from, base::to_toml(expected[i]));
  return theirs;
}

void check_all(HdeeRecipe& found) {
  const HdeeOptions& study = found.study;
  if (found.lines.empty()) base::fail_input("a study needs lines: [study.line.NAME] with size, steps and domains, one for each expert");
  if (found.domains.empty()) base::fail_input("a study needs domains: [study.domain.NAME] with a path, one for each");
  if (found.sizes.empty()) base::fail_input("a study needs sizes: [study.size.NAME] with the keys of [model] that differ");
  check_known("size", study.uniform_size, found.sizes);
  for (const std::string& mode : study.compare)
    if (std::find(kModes.begin(), kModes.end(), mode) == kModes.end()) base::fail_unknown("mode", mode, kModes);
  for (auto& [name, line] : found.lines) {
    if (line.size.empty()) line.size = study.uniform_size;
    if (line.steps == 0) line.steps = study.uniform_steps;
    check_known("size", line.size, found.sizes);
    if (line.domains.empty()) base::fail_input("study.line.{}.domains: empty; an expert is trained on one domain at least", name);
    for (const std::string& domain : line.domains) check_known("domain", domain, found.domains);
  }
  for (const auto& [name, domain] : found.domains)
    if (domain.path.empty()) base::fail_input("study.domain.{}.path: give the files of the domain", name);
  if (found.ensemble.top_k > static_cast<int64_t>(found.lines.size()))
    base::fail_input("ensemble.top_k = {}: there are {} experts; at most so many, or 0 for all", found.ensemble.top_k, found.lines.size());
  if (found.ensemble.decay >= 1) base::fail_input("ensemble.decay = 1: nothing would ever fade; take less than 1, 0.3 is usual");
}

}  // namespace

base::Schema<HdeeOptions> hdee_schema() {
  using O = HdeeOptions;
  return {
      "study",
      "A study of domain experts (cairn study hdee): lines of experts, each trained for itself, at one total of compute.",
      {{"kind", &O::kind, "Which study.", base::one_of({"hdee"})},
       {"mode", &O::mode,
        "What lines differ in. uniform: nothing, all have study.uniform_size and study.uniform_steps; sizes: their size; steps: their "
        "steps; both.",
        base::one_of(kModes)},
       {"compare", &O::compare, "Further modes to train and compare with: [\"uniform\"]. Experts that two modes share are trained once."},
       {"uniform_size", &O::uniform_size, "The size of every expert where sizes do not differ."},
       {"uniform_steps", &O::uniform_steps, "Steps on each domain where steps do not differ.", base::at_least(1)},
       {"difficulty", &O::difficulty,
        "Which line gets which size and steps. given: its own; gain: the line on which the largest size beats the smallest by most after "
        "probe_steps gets the dearest; loss: the one on which the smallest size has the highest held-out loss then.",
        base::one_of({"given", "gain", "loss"})},
       {"probe_steps", &O::probe_steps, "Steps on each domain to find out its difficulty.", base::at_least(1)},
       {"epochs_max", &O::epochs_max, "Most times that an expert reads a domain: of a small one it takes fewer steps.", base::more_than(0)},
       {"restarts", &O::restarts, "How often an expert that was lost is started again from its last snapshot.", base::at_least(0)}}};
}

base::Schema<SeedOptions> seed_schema() {
  using O = SeedOptions;
  return {"study.seed",
          "The models that experts start from, one of each size, trained on what [data] says. A size with `from` needs none.",
          {{"steps", &O::steps, "Steps of a seed; 0: none, experts start from random weights.", base::at_least(0)},
           {"learning_rate", &O::learning_rate, "Highest learning rate of a seed; 0: that of [optim].", base::at_least(0)},
           {"warmup_steps", &O::warmup_steps, "Warm-up of a seed; -1: that of [optim].", base::at_least(-1)}}};
}

base::Schema<BudgetOptions> budget_schema() {
  using O = BudgetOptions;
  return {"study.budget",
          "What an ensemble may cost to train: 6 N FLOPs a token, where N counts parameters from their shapes, the head but no table that "
          "is only looked up in.",
          {{"flops", &O::flops, "Of all experts together; 0: what the uniform mode takes.", base::at_least(0)},
           {"tolerance", &O::tolerance, "How far a mode may be off, as a share; more is refused.", base::between(0, 1)},
           {"solve", &O::solve,
            "What is left open, to be chosen so that the budget is met: a line (its steps) or a size (its mlp). Empty: nothing."}}};
}

base::Schema<LineOptions> line_schema() {
  using O = LineOptions;
  return {"study.line.NAME",
          "One line of experts: it is trained on its domains one after the other, and never hears of the other lines.",
          {{"size", &O::size, "One of [study.size.NAME]; empty: study.uniform_size."},
           {"steps", &O::steps, "Steps on each domain; 0: study.uniform_steps.", base::at_least(0)},
           {"domains", &O::domains, "Names of domains, in order."}}};
}

base::Schema<DomainOptions> domain_schema() {
  return {"study.domain.NAME",
          "A domain. Of its end, eval.fraction is held out: half of that finds the prior, the other half is what results are measured on.",
          {{"path", &DomainOptions::path, "A file, a folder or a pattern, as data.path."}}};
}

base::Schema<IslandOptions> island_schema() {
  using O = IslandOptions;
  return {"study.island.NAME",
          "Where experts are trained, one at a time on each island; without any, here. The dearest expert is placed first, where it ends "
          "soonest.",
          {{"speed", &O::speed, "FLOPs a second, in any unit that all islands share.", base::more_than(0)},
           {"memory_gib", &O::memory_gib, "Memory; experts that need more are placed elsewhere. 0: enough for any.", base::at_least(0)},
           {"device", &O::device, "What experts are trained on there.", base::one_of({"cpu", "cuda"})},
           {"cores", &O::cores, "Cores of this machine that its experts keep to; empty: all.", base::at_least(0)},
           {"launch", &O::launch,
            "What stands before the command that trains an expert: [\"ssh\", \"host\"], where folders are shared; empty: nothing."}}};
}

base::Schema<EnsembleOptions> ensemble_schema() {
  using O = EnsembleOptions;
  return {"ensemble",
          "How experts are combined: by a posterior over them, from how well each foresaw the text so far.",
          {{"prior", &O::prior,
            "Before anything is read: uniform; cached: for each domain, from text of it that is used for nothing else; simple_average: the "
            "mean of their probabilities, whatever is read.",
            base::one_of({"uniform", "cached", "simple_average"})},
           {"prior_sequences", &O::prior_sequences, "Most sequences that a prior is found from.", base::at_least(1)},
           {"decay", &O::decay, "What the prior so far counts, against 1 for the posterior of the next sequence; less than 1.",
            base::between(0, 1)},
           {"decay_by_power", &O::decay_by_power,
            "It counts decay^i for the i-th sequence, as in the published code: after a few, the last one alone decides."},
           {"top_k", &O::top_k, "Only so many experts, the likeliest at the last refresh; 0: all.", base::at_least(0)},
           {"refresh", &O::refresh, "Tokens from one refresh to the next.", base::at_least(1)},
           {"test_sequences", &O::test_sequences, "Most sequences of a domain that results are measured on.", base::at_least(1)}}};
}

std::vector<base::Section> hdee_sections() {
  return {hdee_schema().section(),   seed_schema().section(),   budget_schema().section(),  line_schema().section(),
          domain_schema().section(), island_schema().section(), ensemble_schema().section()};
}

std::vector<std::string> HdeeRecipe::modes() const {
  std::vector<std::string> all{study.mode};
  for (const std::string& mode : study.compare)
    if (std::find(all.begin(), all.end(), mode) == all.end()) all.push_back(mode);
  return all;
}

base::Recipe HdeeRecipe::training_with(const std::vector<std::pair<std::string, base::Setting>>& keys) const {
  base::Recipe recipe = base::Recipe::parse(training);
  for (const std::string& set : sets) recipe.set(set);
  for (const auto& [key, value] : keys) recipe.set(key, value, "the study");
  return recipe;
}

HdeeRecipe read_hdee(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(file);
  HdeeRecipe found;
  for (const std::string& set : sets) {
    recipe.set(set);
    if (!is_own_key(set)) found.sets.push_back(set);
  }
  found.study = recipe.read(hdee_schema());
  found.seed = recipe.read(seed_schema());
  found.budget = recipe.read(budget_schema());
  found.ensemble = recipe.read(ensemble_schema());
  found.lines = read_tables(recipe, "line", line_schema());
  found.domains = read_tables(recipe, "domain", domain_schema());
  found.islands = read_tables(recipe, "island", island_schema());
  if (found.islands.empty()) found.islands["here"] = {};
  const model::ModelOptions common = recipe.read(model::model_schema());
  if (!common.from.empty()) base::fail_input("model.from = {}: sizes start from their own: set study.size.NAME.from", common.from);
  for (const std::string& name : recipe.tables_in("study.size")) {
    check_name("size", name);
    found.sizes[name] = read_size(recipe, name, common);
  }
  recipe.check_all_used(train::recipe_sections());
  check_all(found);
  found.training = without_study(file);
  return found;
}

}  // namespace cairn::study
