#include "study/value_study.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/text.h"
#include "data/corpus/source_tokens.h"
#include "data/table/table.h"
#include "study/recipe_learner.h"
#include "study/study_recipe.h"
#include "train/settings.h"

namespace cairn::study {
namespace {

constexpr int64_t kExactPlayersMax = 20;

// The recipe of the data: validation texts and candidates are further sources, which no training uses.
base::Recipe with_sources(const ValueRecipe& recipe) {
  base::Recipe found = recipe.training, read = recipe.training;
  const train::Settings settings = train::read_settings(read);
  const bool table = settings.data.needs().table;
  const std::string& more = table ? recipe.study.candidates : recipe.study.validation_source;
  if (table && !recipe.study.validation_source.empty())
    base::fail_input("study.validation_source = {}: is for texts. Set data.test_file to a table of held-out rows.",
                     recipe.study.validation_source);
  if (!table && !recipe.study.candidates.empty())
    base::fail_input("study.candidates = {}: is for tables. Leave it out.", recipe.study.candidates);
  if (more.empty()) return found;
  if (table && settings.data.test_file.empty())
    base::fail_input("study.candidates = {}: needs held-out rows of their own. Set data.test_file.", more);
  std::vector<std::string> sources = settings.data.sources;
  if (sources.empty()) sources.push_back(settings.data.path);
  sources.push_back(more);
  found.set("data.sources", sources, "the study");
  found.set("data.path", std::string(), "the study");
  if (!table) found.set("eval.fraction", 0.0, "the study");
  return found;
}

// A column of the table, for the training rows of all sources.
std::vector<std::string> column_of(const train::Settings& settings, const StudySamples& data, const std::string& key,
                                   const std::string& name) {
  if (!settings.data.needs().table) base::fail_input("{} = {}: samples of texts have no columns. Use example or source.", key, name);
  const auto& ignored = settings.data.ignore;
  const auto at = std::find(ignored.begin(), ignored.end(), name);
  if (at == ignored.end()) base::fail_input("{} = {}: must be a column that is no feature. Add it to data.ignore.", key, name);
  const data::Table table = data::read_table(settings.data);
  std::vector<std::string> found;
  for (size_t s = 0; s < table.sources.size(); ++s) {
    const auto& column = table.sources[s].ignored[static_cast<size_t>(at - ignored.begin())];
    found.insert(found.end(), column.begin(), column.begin() + data.sources[s].count);
  }
  return found;
}

void make_players(ValueStudy& study, const train::Settings& settings, size_t sources) {
  const std::string& kind = study.options.players;
  const auto add = [&](const std::string& name, std::vector<int64_t> samples) {
    study.names.push_back(name);
    study.players.push_back(std::move(samples));
  };
  if (kind == "source") {
    for (size_t s = 0; s < sources; ++s) add(study.data.names[s], ids_in(study.data.sources[s]));
  } else if (kind == "example") {
    for (size_t s = 0; s < sources; ++s)
      for (const int64_t id : ids_in(study.data.sources[s])) add(fmt::format("{}", id), {id});
  } else {
    const std::vector<std::string> column = column_of(settings, study.data, "study.players", kind);
    std::map<std::string, std::vector<int64_t>> by_name;
    const int64_t end = study.data.sources[sources - 1].first + study.data.sources[sources - 1].count;
    for (int64_t id = 0; id < end; ++id) by_name[column[static_cast<size_t>(id)]].push_back(id);
    for (auto& [name, samples] : by_name) add(name, std::move(samples));
  }
  if (study.players.size() < 2)
    base::fail_input("study.players = {}: there is one player only. Give several sources (data.sources), or use example.", kind);
}

// Held-out samples for V, and the others for curves.
void share_out(ValueStudy& study, const data::SampleRange& held, bool own_validation) {
  std::vector<int64_t> ids = ids_in(held);
  const int64_t wanted = study.options.validation;
  const int64_t first = wanted > 0 ? wanted : own_validation ? held.count : held.count / 2;
  if (first < 1 || first > held.count)
    base::fail_input(
        "study.validation = {}: {} samples are held out. Set data.test_file or eval.fraction (or study.validation_source, for texts) so "
        "that "
        "there are enough.",
        wanted, held.count);
  study.validation.assign(ids.begin(), ids.begin() + first);
  study.held_out.assign(ids.begin() + first, ids.end());
}

void warn_of_repeats(const ValueStudy& study, base::Log& log) {
  std::set<std::string> known;
  const auto row_of = [&](int64_t id) {
    const auto width = static_cast<size_t>(study.rows.features);
    std::string bytes(reinterpret_cast<const char*>(study.rows.values.data() + static_cast<size_t>(id) * width), width * sizeof(double));
    return bytes + std::to_string(study.rows.labels[static_cast<size_t>(id)]);
  };
  for (const auto& player : study.players)
    for (const int64_t id : player) known.insert(row_of(id));
  const int64_t repeated =
      std::count_if(study.validation.begin(), study.validation.end(), [&](int64_t id) { return known.count(row_of(id)) > 0; });
  if (repeated > 0) log.warn("{} are training rows too: values are too high for those", base::plural(repeated, "validation row"));
}

void check_method(const ValueStudy& study, const train::Settings& settings) {
  const ValueOptions& o = study.options;
  const auto players = static_cast<int64_t>(study.players.size());
  const bool table = settings.data.needs().table;
  if (o.method == "exact" && players > kExactPlayersMax)
    base::fail_input("study.method = exact: {} players need 2^{} trainings; at most {} players. Use tmc.", players, players,
                     kExactPlayersMax);
  if ((o.metric == "auc" || o.metric == "f1") && study.data.opened.classes != 2)
    base::fail_input("study.metric = {}: is for two classes, and the data have {}. Use accuracy or neg_loss.", o.metric,
                     study.data.opened.classes);
  if (o.metric == "accuracy" && !table) base::fail_input("study.metric = accuracy: texts have no classes. Use neg_loss.");
  if (o.learner == "logistic" && !table && o.method != "g")
    base::fail_input("study.learner = logistic: is for tables. Use study.learner = recipe.");
  if (o.method != "g") return;
  if (!table) base::fail_input("study.method = g: steps through classifiers on tables. Use tmc or exact.");
  if (settings.model.batch_norm)
    base::fail_input("study.method = g: model.batch_norm = true needs more than one sample in a step. Leave it out, or use tmc.");
  if (o.learner == "recipe" && (settings.model.hidden.empty()))
    base::fail_input(
        "study.method = g: knows classifiers of dense layers. Set model.kind = \"classifier\" and model.hidden, or study.learner = "
        "logistic.");
}

class MeanUtility final : public Utility {
 public:
  explicit MeanUtility(std::vector<std::unique_ptr<Utility>> of) : of_(std::move(of)) {}
  double value(std::span<const int64_t> samples) const override {
    return mean([&](const Utility& one) { return one.value(samples); });
  }
  double empty() const override {
    return mean([](const Utility& one) { return one.empty(); });
  }
  bool covers(std::span<const int64_t> samples) const override { return of_.front()->covers(samples); }
  std::vector<double> resampled(std::span<const int64_t> samples, int64_t count, uint64_t seed) const override {
    std::vector<double> sums(static_cast<size_t>(count));
    for (const auto& one : of_) {
      const std::vector<double> scores = one->resampled(samples, count, seed);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += scores[i] / static_cast<double>(of_.size());
    }
    return sums;
  }

 private:
  template <typename Score>
  double mean(const Score& score) const {
    double sum = 0;
    for (const auto& one : of_) sum += score(*one);
    return sum / static_cast<double>(of_.size());
  }
  std::vector<std::unique_ptr<Utility>> of_;
};

std::unique_ptr<Utility> utility_on(const ValueStudy& study, const std::vector<int64_t>& rows) {
  std::vector<std::unique_ptr<Utility>> all;
  for (const auto& learner : study.learners)
    all.push_back(make_utility({.learner = *learner,
                                .metric = study.options.metric,
                                .rows = rows,
                                .labels = study.data.labels,
                                .classes = study.data.opened.classes,
                                .needs_all_classes = study.options.coverage == "required"}));
  if (all.size() == 1) return std::move(all.front());
  return std::make_unique<MeanUtility>(std::move(all));
}

void make_learners(ValueStudy& study, const base::Recipe& recipe, const StudySetup& setup, const base::Stop& stop) {
  if (study.options.learner == "logistic") {
    study.learners.push_back(make_logistic_learner(study.rows, study.options.ridge));
    return;
  }
  for (int64_t i = 0; i < study.options.seeds; ++i)
    study.learners.push_back(make_recipe_learner(
        {.recipe = with_keys(recipe, {{"train.seed", static_cast<int64_t>(study.seed) + i}, {"log.samples", int64_t{0}}}),
         .cache = setup.cache,
         .device = study.options.device,
         .threads = setup.threads,
         .stop = &stop}));
}

}  // namespace

ValueRecipe read_value(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  StudyRecipe parts = split_recipe(file, sets);
  ValueRecipe found{.study = parts.all.read(value_schema()), .training = std::move(parts.training)};
  parts.all.check_all_used(train::recipe_sections());
  base::Recipe checked = found.training;
  train::read_settings(checked);
  return found;
}

std::unique_ptr<ValueStudy> open_value_study(const ValueRecipe& recipe, const StudySetup& setup, base::Log& log, const base::Stop& stop) {
  const base::Recipe training = with_sources(recipe);
  base::Recipe read = training;
  const train::Settings settings = train::read_settings(read);
  auto study = std::make_unique<ValueStudy>();
  study->options = recipe.study;
  study->seed = static_cast<uint64_t>(settings.train.seed);
  study->data = open_study_samples(settings, setup.cache, log);
  const bool table = settings.data.needs().table;
  const bool more = !(table ? recipe.study.candidates : recipe.study.validation_source).empty();
  const size_t sources = study->data.sources.size() - (more ? 1 : 0);
  make_players(*study, settings, sources);
  if (table && more) study->candidates = ids_in(study->data.sources.back());
  const bool own_validation = !table && more;
  share_out(*study, own_validation ? study->data.sources.back() : study->data.opened.samples->held_out(), own_validation);
  if (table) study->rows = labelled_rows(study->data);
  if (table) warn_of_repeats(*study, log);
  check_method(*study, settings);
  if (!recipe.study.corrupted.empty()) {
    const std::vector<std::string> column = column_of(settings, study->data, "study.corrupted", recipe.study.corrupted);
    for (const auto& player : study->players)
      study->corrupted.push_back(
          std::all_of(player.begin(), player.end(), [&](int64_t id) { return column[static_cast<size_t>(id)] == "1"; }));
  }
  if (recipe.study.method == "g")
    study->gradient.emplace(GradientGame{.rows = study->rows,
                                         .players = study->players,
                                         .validation = study->validation,
                                         .hidden = recipe.study.learner == "recipe" ? settings.model.hidden : std::vector<int64_t>{},
                                         .metric = recipe.study.metric,
                                         .seed = study->seed,
                                         .device = at::Device(recipe.study.device)});
  make_learners(*study, training, setup, stop);
  study->utility = utility_on(*study, study->validation);
  if (!study->held_out.empty()) study->held_out_utility = utility_on(*study, study->held_out);
  const ValueOptions& o = recipe.study;
  study->identity = data::combine(
      {study->data.opened.digest, checksum_of_values(read, {"log", "snapshot"}), study->players.size(), study->validation.size(),
       checksum_of_options(value_schema(), o, {"error", "max_permutations", "save_every", "corrupted", "curves", "budget_hours"})});
  return study;
}

}  // namespace cairn::study
