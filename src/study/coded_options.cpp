#include "study/coded_options.h"

#include <sstream>

#include "base/check.h"
#include "train/settings.h"

namespace cairn::study {
namespace {

bool is_of_coded_study(std::string_view key) { return key.starts_with("study.") || key == "study"; }

// The recipe without [study...], with its line numbers.
base::Recipe::File training_part(const base::Recipe::File& file) {
  base::Recipe::File kept{.text = {}, .name = file.name};
  std::istringstream lines(file.text);
  bool own = false;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos && line[first] == '[') own = line.compare(first, 6, "[study") == 0;
    kept.text += (own ? "" : line) + "\n";
  }
  return kept;
}

void check_streams(const CodedStudyOptions& o) {
  const bool given = o.params == "given";
  const int64_t delay = o.scheme == "srsgc" ? o.b : o.scheme == "msgc" ? o.w - 2 + o.b : 0;
  if (given && o.scheme == "auto")
    base::fail_input("study.scheme = auto: parameters are given for one scheme: name it, or use study.params = auto");
  if (given && o.streams < delay + 1)
    base::fail_input("study.streams = {}: {}({},{},{}) delays gradients by {} rounds: train at least {} models, or use study.scheme = gc",
                     o.streams, o.scheme, o.b, o.w, o.lambda, delay, delay + 1);
  const bool delays = o.scheme == "msgc" || o.scheme == "srsgc";
  if (!given && delays && o.streams < 2)
    base::fail_input("study.streams = {}: {} delays gradients by at least one round: train 2 models or more, or use study.scheme = gc",
                     o.streams, o.scheme);
  if (!o.vary.empty() && static_cast<int64_t>(o.vary.size()) != o.streams)
    base::fail_input("study.vary: {} texts for {} streams: give one for each, or none", o.vary.size(), o.streams);
}

}  // namespace

base::Schema<CodedStudyOptions> coded_study_schema() {
  using O = CodedStudyOptions;
  return {"study",
          "With kind = \"coded\" (`cairn study coded`): several models trained in turn by workers that may be late.",
          {{"kind", &O::kind, "Which study this recipe is for.", base::one_of({"coded"})},
           {"workers", &O::workers, "Worker processes.", base::between(1, 1024)},
           {"streams", &O::streams, "Models that are trained in turn; a scheme that delays gradients by T rounds needs T + 1.",
            base::at_least(1)},
           {"vary", &O::vary, "What differs between the models, a text of KEY=VALUE words for each; empty: train.seed counts up."},
           {"scheme", &O::scheme,
            "none: all workers are waited for. gc: gradient coding. srsgc: what was missing is repeated. msgc: own chunks are repeated, a "
            "small "
            "rest is coded. auto: whichever is predicted to be fastest.",
            base::one_of({"none", "gc", "srsgc", "msgc", "auto"})},
           {"params", &O::params, "auto: chosen by replaying a probe. given: by the keys below.", base::one_of({"auto", "given"})},
           {"s", &O::s, "gc: how many workers may be late in a round.", base::at_least(0)},
           {"b", &O::b, "srsgc, msgc: for how many rounds in a row a worker may be late (B).", base::at_least(1)},
           {"w", &O::w, "srsgc, msgc: the rounds over which late workers are counted (W).", base::at_least(2)},
           {"lambda", &O::lambda, "srsgc, msgc: how many workers may be late in those rounds.", base::at_least(0)},
           {"max_delay", &O::max_delay, "With params = auto: the most rounds by which gradients are delayed; at most streams - 1.",
            base::at_least(0)},
           {"probe_rounds", &O::probe_rounds, "With params = auto: rounds that are measured first. They train too.", base::at_least(1)},
           {"mu", &O::mu, "A worker is late when it takes (1 + mu) times as long as the first.", base::at_least(0)},
           {"code", &O::code,
            "repetition needs groups of equal size and rounds nothing; random works with any number; auto: the first where possible.",
            sync::kCodeKindNames},
           {"dead_after", &O::dead_after, "A worker that holds up a round for so many usual rounds is removed.", base::at_least(2)}}};
}

base::Schema<MadeStragglers> made_stragglers_schema() {
  using O = MadeStragglers;
  return {"study.stragglers",
          "Stragglers made for trials: workers pause before they compute. A worker becomes slow and well again by chance.",
          {{"enter", &O::enter, "The probability that a worker becomes slow in a round. 0: none is made.", base::between(0, 1)},
           {"leave", &O::leave, "The probability that a slow worker becomes well again in a round.", base::between(0, 1)},
           {"delay_s", &O::delay_s, "How many seconds a slow worker pauses.", base::at_least(0)},
           {"base_s", &O::base_s, "How many seconds every worker pauses, as if links were slow.", base::at_least(0)},
           {"load_s", &O::load_s, "How many seconds it pauses for a whole batch, as if computing were slow; less for a part.",
            base::at_least(0)}}};
}

std::vector<base::Section> coded_sections() { return {coded_study_schema().section(), made_stragglers_schema().section()}; }

CodedRecipe read_coded(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  base::Recipe all = base::Recipe::parse(file);
  for (const std::string& set : sets) all.set(set);
  CodedRecipe found{.study = all.read(coded_study_schema()), .stragglers = all.read(made_stragglers_schema()), .streams = {}};
  all.check_all_used(train::recipe_sections());
  check_streams(found.study);
  base::Recipe training = base::Recipe::parse(training_part(file));
  for (const std::string& set : sets)
    if (!is_of_coded_study(set)) training.set(set);
  base::Recipe first = training;
  const int64_t seed = first.read(train::train_schema()).seed;
  for (int64_t i = 0; i < found.study.streams; ++i) {
    base::Recipe one = training;
    if (found.study.vary.empty()) one.set("train.seed", seed + i, "the study");
    std::istringstream words(found.study.vary.empty() ? "" : found.study.vary[static_cast<size_t>(i)]);
    for (std::string word; words >> word;) one.set(word, "study.vary");
    train::check_recipe(one, 1);
    found.streams.push_back(std::move(one));
  }
  return found;
}

}  // namespace cairn::study
