#include "study/lifelong.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/corpus/source_tokens.h"
#include "data/search/k_means.h"
#include "data/table/table.h"
#include "kernels/aten.h"
#include "study/lifelong_report.h"
#include "study/lifelong_select.h"
#include "study/resumed_run.h"
#include "study/sample_scores.h"
#include "study/study_recipe.h"
#include "study/study_samples.h"
#include "study/trained_weights.h"
#include "train/build.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr int64_t kElbowFrom = 5, kElbowTo = 50, kElbowStep = 5, kStarts = 5;

// Held-out samples by skill.
struct Skills {
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> samples;
};

class Lifelong {
 public:
  Lifelong(comm::World& world, const LifelongRecipe& recipe, const StudySetup& setup, const base::Stop& stop)
      : world_(world), recipe_(recipe), setup_(setup), stop_(stop), quiet_(base::Log::quiet()) {
    if (recipe.study.device != "cpu" && world.size() > 1)
      base::fail_input("study.device = {}: one rank has it. Leave out --nproc.", recipe.study.device);
    base::Recipe read = recipe.training;
    settings_ = train::read_settings(read);
    random_ = base::Random(static_cast<uint64_t>(settings_.train.seed)).for_purpose("lifelong");
    data_.emplace(open_study_samples(settings_, setup.cache, world.rank() == 0 ? world.log() : quiet_));
    if (data_->sources.size() != recipe.study.datasets.size())
      base::fail_input("study.datasets: {} sources for {} datasets", data_->sources.size(), recipe.study.datasets.size());
    find_skills();
    identity_ = data::combine({checksum_of_values(read, {"data", "log", "snapshot", "eval"}),
                               checksum_of_options(lifelong_schema(), recipe.study, {"datasets", "skills"}),
                               checksum_of_options(vector_schema(), recipe.vectors)});
  }

  LifelongResult run() {
    if (world_.rank() == 0) base::make_folder(setup_.out);
    result_.skills = skills_.names;
    load();
    for (auto t = static_cast<int64_t>(result_.steps.size()); t < static_cast<int64_t>(data_->sources.size()); ++t) take_step(t);
    if (world_.rank() == 0) write_lifelong_report(result_, recipe_, setup_.out);
    return std::move(result_);
  }

 private:
  void find_skills() {
    const data::SampleRange held = data_->opened.samples->held_out();
    if (!recipe_.study.skills.empty()) {
      const std::vector<std::string>& ignored = settings_.data.ignore;
      const auto at = std::find(ignored.begin(), ignored.end(), recipe_.study.skills);
      if (!settings_.data.needs().table || settings_.data.test_file.empty() || at == ignored.end())
        base::fail_input("study.skills = {}: must be a column of data.test_file that is no feature. Add it to data.ignore.",
                         recipe_.study.skills);
      const data::Table table = data::read_table(settings_.data);
      const std::vector<std::string>& column = table.test.front().ignored[static_cast<size_t>(at - ignored.begin())];
      std::map<std::string, std::vector<int64_t>> by_name;
      for (size_t i = 0; i < column.size(); ++i) by_name[column[i]].push_back(held.first + static_cast<int64_t>(i));
      for (auto& [name, samples] : by_name) skills_.names.push_back(name), skills_.samples.push_back(std::move(samples));
      return;
    }
    if (held.count == 0)
      base::fail_input("eval.fraction = {}: nothing is held out to report skills on. Raise it.", settings_.eval.fraction);
    if (!settings_.data.test_file.empty()) {
      skills_ = {{"test"}, {ids_in(held)}};
      return;
    }
    int64_t first = held.first;
    for (size_t s = 0; s < data_->sources.size(); ++s) {  // held-out samples lie source by source
      train::Settings one = settings_;
      one.data.sources = {recipe_.study.datasets[s]};
      const int64_t count = open_study_samples(one, setup_.cache, quiet_).opened.samples->held_out().count;
      skills_.names.push_back(std::filesystem::path(recipe_.study.datasets[s]).stem().string());
      skills_.samples.push_back(ids_in({first, count}));
      first += count;
    }
  }

  base::Recipe training() const { return with_keys(recipe_.training, {{"log.samples", int64_t{0}}}); }

  train::Start start(const std::filesystem::path& out) const {
    return {.out = out,
            .resume = has_begun(world_, out),
            .cache = setup_.cache,
            .device = recipe_.study.device,
            .threads = setup_.threads,
            .terminal = nullptr};
  }

  std::filesystem::path folder(int64_t t) const { return setup_.out / fmt::format("step-{}", t); }

  void take_step(int64_t t) {
    LifelongStep step;
    const std::vector<int64_t> arrived = ids_in(data_->sources[static_cast<size_t>(t)]);
    std::vector<int64_t> pool = recipe_.study.method == "sequential" || t == 0 ? std::vector<int64_t>() : result_.steps.back().pool;
    pool.insert(pool.end(), arrived.begin(), arrived.end());
    step.pool_before = static_cast<int64_t>(pool.size());
    if (recipe_.study.budget > step.pool_before)
      base::fail_input("study.budget = {}: the pool has {} samples after {}. Lower it.", recipe_.study.budget, step.pool_before,
                       recipe_.study.datasets[static_cast<size_t>(t)]);
    const base::Random random = random_.for_index(static_cast<uint64_t>(t));
    std::optional<SampleScores> scores;
    if (recipe_.study.method == "adapt") {
      scores = describe(pool, step);
      choose(pool, *scores, random, step);
    } else {
      for (const int64_t place : choose_evenly(step.pool_before, recipe_.study.budget, random.for_purpose("selection")))
        step.selected.push_back(pool[static_cast<size_t>(place)]);
    }
    for (const data::SampleRange& source : data_->sources)
      step.shares.push_back(
          static_cast<double>(std::count_if(step.selected.begin(), step.selected.end(),
                                            [&](int64_t id) { return id >= source.first && id < source.first + source.count; })) /
          static_cast<double>(step.selected.size()));
    train_on(t, step);
    step.pool = pruned(pool, scores, random, step);
    step.pool_after = static_cast<int64_t>(step.pool.size());
    report(t, step);
    result_.steps.push_back(std::move(step));
    save(t);
  }

  template <typename Act>
  void timed(LifelongStep& step, const char* what, const Act& act) {
    const base::RealClock clock;
    act();
    step.seconds[what] = base::seconds(clock.now());
  }

  // Vectors, clusters and scores of the pool under the current model.
  SampleScores describe(const std::vector<int64_t>& pool, LifelongStep& step) {
    SampleScores scores;
    timed(step, "vectors", [&] {
      const std::unique_ptr<train::Job> job = train::build(
          world_, training(),
          {.out = {}, .cache = setup_.cache, .device = recipe_.study.device, .threads = setup_.threads, .terminal = nullptr}, {});
      if (!weights_.empty()) put_trained(*job, weights_);
      const VectorOptions& o = recipe_.vectors;
      ScoreOptions options{.gradients = true, .layer = o.layer, .projection = {.dim = o.dim, .seed = static_cast<uint64_t>(o.seed)}};
      scores = score_samples(*job, pool, options);
      if (scores.not_finite > 0) world_.log().warn("{} gradients are not finite: those numbers count as 0", scores.not_finite);
      if (o.type == "sign") scores.vectors = scores.vectors.sign() / std::sqrt(static_cast<double>(o.dim));
      if (o.type == "zero_order")
        scores.vectors = zero_order_vectors(*job, pool, options, {.directions = o.directions, .size = o.perturbation});
      if (!recipe_.image.empty()) {
        options.gradients = false;
        options.zeroed = recipe_.image;
        blind_ = score_samples(*job, pool, options).loss;
      }
    });
    timed(step, "clusters", [&] { cluster(pool, scores, step); });
    return scores;
  }

  void cluster(const std::vector<int64_t>& pool, const SampleScores& scores, LifelongStep& step) {
    const at::Tensor& vectors = recipe_.vectors.kind == "hidden" ? scores.hidden : scores.vectors;
    if (!vectors.defined()) base::fail_input("study.vectors.kind = hidden: this layer has no hidden states. Choose another layer.");
    const auto rows = data::rows_in_memory(vectors.contiguous());
    const auto clustered = [&](int64_t k, int64_t starts) {
      return data::k_means(*rows,
                           {.clusters = k, .restarts = starts, .seed = random_.for_purpose("clusters").bits64(result_.steps.size())});
    };
    int64_t k = std::min<int64_t>(recipe_.study.clusters, static_cast<int64_t>(pool.size()));
    if (k == 0) {
      std::vector<int64_t> tried;
      std::vector<double> inertia;
      for (int64_t one = kElbowFrom; one <= std::min<int64_t>(kElbowTo, static_cast<int64_t>(pool.size())); one += kElbowStep) {
        tried.push_back(one);
        inertia.push_back(clustered(one, 1).inertia);
      }
      k = tried.empty() ? 1 : tried[elbow(tried, inertia)];
    }
    data::KMeans found = clustered(k, kStarts);
    step.labels = std::move(found.labels);
    step.clustered = pool;
    step.clusters.resize(static_cast<size_t>(k));
  }

  std::vector<std::pair<std::string, std::vector<double>>> candidates(const SampleScores& scores) const {
    std::vector<std::pair<std::string, std::vector<double>>> all;
    for (const std::string& name : recipe_.study.scores) {
      if (name == "ppl") all.emplace_back(name, scores.loss);
      if (name == "el2n") all.emplace_back(name, scores.el2n);
      if (name == "entropy") all.emplace_back(name, scores.entropy);
      if (name == "grand") all.emplace_back(name, scores.grand);
      if (name == "ig") all.emplace_back(name, image_grounding(blind_, scores.loss));
    }
    return all;
  }

  void choose(const std::vector<int64_t>& pool, const SampleScores& scores, const base::Random& random, LifelongStep& step) {
    std::vector<std::vector<size_t>> members(step.clusters.size());
    for (size_t i = 0; i < pool.size(); ++i) members[static_cast<size_t>(step.labels[i])].push_back(i);
    std::vector<int64_t> sizes;
    for (const auto& one : members) sizes.push_back(static_cast<int64_t>(one.size()));
    const std::vector<int64_t> budgets = water_filling(sizes, recipe_.study.budget);
    const auto all = candidates(scores);
    for (size_t c = 0; c < members.size(); ++c) {
      ClusterChoice& choice = step.clusters[c];
      choice.size = sizes[c];
      choice.budget = budgets[c];
      std::vector<double> best;
      for (const auto& [name, of_pool] : all) {
        std::vector<double> here;
        for (const size_t i : members[c]) here.push_back(of_pool[i]);
        choice.entropy.push_back(score_entropy(here));
        if (choice.score.empty() || choice.entropy.back() > *std::max_element(choice.entropy.begin(), choice.entropy.end() - 1))
          choice.score = name, best = std::move(here);
      }
      for (const int64_t place : choose_within(recipe_.study.within, best, budgets[c], random.for_purpose("selection").for_index(c)))
        step.selected.push_back(pool[members[c][static_cast<size_t>(place)]]);
    }
    std::sort(step.selected.begin(), step.selected.end());
  }

  void train_on(int64_t t, LifelongStep& step) {
    timed(step, "training", [&] {
      bool ended = false;
      train::run(world_, training(), start(folder(t)), data::Subset::of(step.selected), stop_,
                 {.at_begin =
                      [&](train::Job& job) {
                        if (!weights_.empty()) put_trained(job, weights_);
                      },
                  .at_end =
                      [&](train::Job& job) {
                        ended = true;
                        weights_ = take_trained(job);
                        for (const auto& samples : skills_.samples) {
                          const std::vector<double> correct = score_samples(job, samples).correct;
                          step.accuracy.push_back(std::accumulate(correct.begin(), correct.end(), 0.0) /
                                                  static_cast<double>(std::max<size_t>(1, correct.size())));
                        }
                      }});
      if (!ended) throw Error(Error::Kind::cancelled, "the study was stopped; start it again to go on");
    });
  }

  std::vector<int64_t> pruned(const std::vector<int64_t>& pool, const std::optional<SampleScores>& scores, const base::Random& random,
                              LifelongStep& step) {
    const int64_t cap = recipe_.study.pool_cap;
    if (cap == 0 || static_cast<int64_t>(pool.size()) <= cap) return pool;
    std::vector<int64_t> places;
    timed(step, "pruning", [&] {
      places = scores
                   ? least_similar(recipe_.study.prune_vectors == "hidden" && scores->hidden.defined() ? scores->hidden : scores->vectors,
                                   step.labels, static_cast<int64_t>(step.clusters.size()), cap)
                   : choose_evenly(static_cast<int64_t>(pool.size()), cap, random.for_purpose("pruning"));
    });
    std::vector<int64_t> kept;
    for (const int64_t place : places) kept.push_back(pool[static_cast<size_t>(place)]);
    return kept;
  }

  void report(int64_t t, const LifelongStep& step) const {
    if (world_.rank() != 0) return;
    world_.log().info("{}: pool {} -> {}, {} selected, shares [{:.2f}], accuracy [{:.3f}]", recipe_.study.datasets[static_cast<size_t>(t)],
                      step.pool_before, step.pool_after, step.selected.size(), fmt::join(step.shares, " "), fmt::join(step.accuracy, " "));
  }

  // Of the recipe and the samples of the first datasets: more may follow.
  uint64_t identity(size_t datasets) const {
    constexpr int64_t kAtOnce = 1024;
    uint64_t all = identity_;
    for (size_t d = 0; d < datasets; ++d) {
      const data::SampleRange& source = data_->sources[d];
      all = data::combine({all, static_cast<uint64_t>(source.first), static_cast<uint64_t>(source.count)});
      for (int64_t first = 0; first < source.count; first += kAtOnce) {
        mesh::Batch batch;
        data_->opened.samples->fill(ids_in({source.first + first, std::min(kAtOnce, source.count - first)}), batch);
        for (const auto& [name, field] : batch.fields) {
          const at::Tensor whole = field.tensor.contiguous();
          all = data::combine({all, base::checksum(std::string_view(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()))});
        }
      }
    }
    return all;
  }

  void check_samples(const std::vector<int64_t>& samples) const {
    const data::SampleRange& last = data_->sources.back();
    for (const int64_t one : samples)
      if (one < 0 || one >= last.first + last.count) base::fail_corrupt(state_file().string(), fmt::format("there is no sample {}", one));
  }

  std::filesystem::path state_file() const { return setup_.out / "state.json"; }
  std::filesystem::path weights_file(int64_t t) const { return setup_.out / fmt::format("weights-{}.bin", t); }

  // The weights come first: a state names only weights that are there.
  void save(int64_t t) {
    if (world_.rank() != 0) return;
    write_weights(weights_file(t).string(), weights_);
    write_lifelong_state(result_, identity(result_.steps.size()), state_file());
    std::error_code ignored;
    if (t > 0) std::filesystem::remove(weights_file(t - 1), ignored);
  }

  void load() {
    if (!has_state(world_, state_file())) {
      if (world_.rank() == 0) write_lifelong_state(result_, identity(0), state_file());  // so that no other recipe goes on in these runs
      return;
    }
    LifelongState state = read_lifelong_state(state_file());
    const size_t steps = state.result.steps.size();
    if (steps > data_->sources.size() || state.identity != fmt::format("{:016x}", identity(steps)))
      base::fail_input("{}: of another recipe, or of other data. Give another --out, or remove the directory.", state_file().string());
    for (LifelongStep& step : state.result.steps) {
      check_samples(step.selected);
      check_samples(step.pool);
      std::vector<double> accuracy(skills_.names.size(), std::numeric_limits<double>::quiet_NaN());
      for (size_t s = 0; s < std::min(step.accuracy.size(), state.result.skills.size()); ++s)
        if (const auto at = std::find(skills_.names.begin(), skills_.names.end(), state.result.skills[s]); at != skills_.names.end())
          accuracy[static_cast<size_t>(at - skills_.names.begin())] = step.accuracy[s];
      step.accuracy = std::move(accuracy);
    }
    result_.steps = std::move(state.result.steps);
    if (steps == 0) return;
    weights_ = read_weights(weights_file(static_cast<int64_t>(result_.steps.size()) - 1).string());
    if (world_.rank() == 0) world_.log().info("goes on after {} of {} datasets", result_.steps.size(), data_->sources.size());
  }

  comm::World& world_;
  const LifelongRecipe& recipe_;
  const StudySetup& setup_;
  const base::Stop& stop_;
  base::Log quiet_;
  train::Settings settings_;
  base::Random random_;
  std::optional<StudySamples> data_;
  Skills skills_;
  uint64_t identity_ = 0;
  LifelongResult result_;
  mesh::NamedTensors weights_;  // of the step before; empty: the model's start
  std::vector<double> blind_;   // losses without the image
};

}  // namespace

double LifelongResult::accuracy() const {
  const std::vector<double>& last = steps.back().accuracy;
  return std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(last.size());
}

double LifelongResult::forgetting() const {
  double sum = 0;
  const size_t n = steps.back().accuracy.size();
  for (size_t s = 0; s < n; ++s) {
    double best = steps.back().accuracy[s];
    for (const LifelongStep& one : steps) best = std::max(best, one.accuracy[s]);  // not a number: the skill came later
    sum += best - steps.back().accuracy[s];
  }
  return sum / static_cast<double>(n);
}

LifelongRecipe read_lifelong(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  StudyRecipe parts = split_recipe(file, sets);
  LifelongRecipe found{.study = parts.all.read(lifelong_schema()),
                       .vectors = parts.all.read(vector_schema()),
                       .image = {},
                       .training = std::move(parts.training)};
  parts.all.check_all_used(train::recipe_sections());
  const LifelongOptions& o = found.study;
  if (o.datasets.size() < 2) base::fail_input("study.datasets: give at least two files, in the order in which they arrive");
  if (std::set<std::string>(o.datasets.begin(), o.datasets.end()).size() != o.datasets.size())
    base::fail_input("study.datasets: a file is named twice. Name each once.");
  if (o.pool_cap > 0 && o.budget > o.pool_cap)
    base::fail_input("study.budget = {}: more than study.pool_cap = {}. Lower it, or raise the cap.", o.budget, o.pool_cap);
  if (o.clusters > o.budget)
    base::fail_input("study.clusters = {}: more than study.budget = {}. Use fewer clusters.", o.clusters, o.budget);
  if (found.vectors.dim % mesh::kProjectionBlock != 0)
    base::fail_input("study.vectors.dim = {}: must be a multiple of {}. Use 1024.", found.vectors.dim, mesh::kProjectionBlock);
  found.training.set("data.sources", o.datasets, "the study");
  found.training.set("data.path", std::string(), "the study");
  base::Recipe read = found.training;
  const train::Settings settings = train::read_settings(read);
  if (settings.data.needs().is_text() && settings.data.packing != data::Packing::none)
    base::fail_input("data.packing: samples of a pool are whole documents. Set data.packing = none.");
  for (const std::string& score : o.scores) {
    if (std::set<std::string>{"ppl", "el2n", "entropy", "grand", "ig"}.count(score) == 0)
      base::fail_input("study.scores: unknown score {}. Use ppl, el2n, entropy, grand or ig.", score);
    if (score != "ig") continue;
    if (!settings.data.needs().table || o.image.empty())
      base::fail_input("study.scores: score ig needs an image input. Leave it out, or name the columns of the image in study.image.");
    data::DataOptions all = settings.data;
    const data::Table table = data::read_table(all);
    const std::vector<std::string>& features = table.sources.front().features;
    for (const std::string& column : o.image) {
      const auto at = std::find(features.begin(), features.end(), column);
      if (at == features.end()) base::fail_input("study.image: {} is no feature. Name columns of the table.", column);
      found.image.push_back(at - features.begin());
    }
  }
  if (o.scores.empty() && o.method == "adapt") base::fail_input("study.scores: empty. Name at least one of ppl, el2n, entropy, grand.");
  return found;
}

LifelongResult run_lifelong(comm::World& world, const LifelongRecipe& recipe, const StudySetup& setup, const base::Stop& stop) {
  return Lifelong(world, recipe, setup, stop).run();
}

}  // namespace cairn::study
