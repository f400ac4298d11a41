#include "study/iterate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/corpus/source_tokens.h"
#include "data/search/k_means.h"
#include "data/selection/pool.h"
#include "data/selection/quota.h"
#include "data/selection/subset_file.h"
#include "data/table/table.h"
#include "kernels/aten.h"
#include "study/iterate_report.h"
#include "study/iterate_select.h"
#include "study/resumed_run.h"
#include "study/sample_scores.h"
#include "study/study_recipe.h"
#include "study/study_samples.h"
#include "train/build.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr int64_t kSilhouetteSamples = 2000;
constexpr double kUnscored = std::numeric_limits<double>::quiet_NaN();

// The mean silhouette of some samples, with distances to centroids in place of those to all members.
double silhouette(const at::Tensor& vectors, const data::KMeans& found) {
  const int64_t rows = std::min(vectors.size(0), kSilhouetteSamples);
  const at::Tensor distances = (vectors.narrow(0, 0, rows).square().sum(1, /*keepdim=*/true) + found.centroids.square().sum(1) -
                                at::matmul(vectors.narrow(0, 0, rows), found.centroids.t()) * 2)
                                   .clamp_min(0)
                                   .sqrt();
  const auto [nearest, which] = distances.topk(2, 1, /*largest=*/false);
  const at::Tensor own = nearest.select(1, 0), other = nearest.select(1, 1);
  return ((other - own) / other.clamp_min(1e-12)).mean().item<double>();
}

class Iterate {
 public:
  Iterate(comm::World& world, const IterateRecipe& recipe, const StudySetup& setup, const base::Stop& stop)
      : world_(world), recipe_(recipe), o_(recipe.study), setup_(setup), stop_(stop), quiet_(base::Log::quiet()) {
    if (o_.device != "cpu" && world.size() > 1) base::fail_input("study.device = {}: one rank has it. Leave out --nproc.", o_.device);
    base::Recipe read = recipe.training;
    settings_ = train::read_settings(read);
    random_ = base::Random(static_cast<uint64_t>(settings_.train.seed)).for_purpose("iterate");
    data_.emplace(open_study_samples(settings_, setup.cache, world.rank() == 0 ? world.log() : quiet_));
    samples_ = data_->opened.samples->training().count;
    if (o_.budget > samples_) base::fail_input("study.budget = {}: there are {} training samples. Lower it.", o_.budget, samples_);
    if (o_.budget < o_.rounds) base::fail_input("study.rounds = {}: more than study.budget = {}. Use fewer rounds.", o_.rounds, o_.budget);
    ids_ = ids_in({0, samples_});
    identity_ = data::combine({data_->opened.digest, static_cast<uint64_t>(samples_), checksum_of_values(read, {"log", "snapshot"}),
                               checksum_of_options(iterate_schema(), o_)});
  }

  IterateResult run() {
    if (world_.rank() == 0) base::make_folder(setup_.out);
    read_quality();
    cluster();
    load();
    const int64_t rounds = o_.method == "iterative" ? o_.rounds : 1;
    for (auto round = static_cast<int64_t>(result_.rounds.size()); round < rounds; ++round) take_round(round, rounds);
    train_last();
    if (world_.rank() == 0) write_iterate_report(result_, recipe_, setup_.out);
    return std::move(result_);
  }

 private:
  bool table() const { return settings_.data.needs().table; }

  // A column of the table, by training sample.
  std::vector<std::string> column(const std::string& key, const std::string& name) const {
    const std::vector<std::string>& ignored = settings_.data.ignore;
    const auto at = std::find(ignored.begin(), ignored.end(), name);
    if (!table() || at == ignored.end())
      base::fail_input("{} = {}: must be a column of the table that is no feature. Add it to data.ignore.", key, name);
    const data::Table all = data::read_table(settings_.data);
    std::vector<std::string> found;
    for (size_t s = 0; s < all.sources.size(); ++s) {
      const std::vector<std::string>& of = all.sources[s].ignored[static_cast<size_t>(at - ignored.begin())];
      found.insert(found.end(), of.begin(), of.begin() + data_->sources[s].count);
    }
    return found;
  }

  void read_quality() {
    if (o_.quality.empty()) return;
    if (table()) {
      for (const std::string& text : column("study.quality", o_.quality)) {
        char* end = nullptr;
        quality_.push_back(std::strtod(text.c_str(), &end));
        if (text.empty() || *end != '\0') base::fail_input("study.quality = {}: \"{}\" is not a number.", o_.quality, text.substr(0, 40));
      }
    } else {
      const data::ScoreColumn scores = data::read_column(o_.quality);
      const data::Pool pool = data::open_pool(settings_.data, {.cache_folder = setup_.cache.string(), .hash_pool = true}, quiet_);
      data::check_source(scores, "study.quality", o_.quality, pool.digest(), pool.documents());
      int64_t document = 0;
      for (int64_t s = 0; s < pool.sources(); ++s) {
        int64_t in_source = 0;
        for (; document < pool.documents() && pool.source_of(document) == s; ++document, ++in_source)
          if (in_source < data_->sources[static_cast<size_t>(s)].count)
            quality_.push_back(static_cast<double>(scores.scores[static_cast<size_t>(document)]));
      }
    }
    for (const double one : quality_)
      if (!std::isfinite(one) || (o_.pick == "weighted" && one < 0))
        base::fail_input("study.quality = {}: has {}, and qualities are not negative. Use study.pick = softmax, or other numbers.",
                         o_.quality, one);
  }

  at::Tensor vectors() {
    if (o_.embedding == "features" || (o_.embedding == "auto" && table())) {
      if (!table()) base::fail_input("study.embedding = features: texts have none. Use hidden or source.");
      mesh::Batch batch;
      data_->opened.samples->fill(ids_, batch);
      return batch.field("features").to(at::kFloat);
    }
    const std::unique_ptr<train::Job> job = train::build(
        world_, training(), {.out = {}, .cache = setup_.cache, .device = o_.device, .threads = setup_.threads, .terminal = nullptr}, {});
    const SampleScores scores =
        score_samples(*job, ids_, {.gradients = true, .layer = o_.layer, .projection = {.dim = mesh::kProjectionBlock}});
    if (!scores.hidden.defined()) base::fail_input("study.layer = {}: it has no hidden states. Choose another layer.", o_.layer);
    return scores.hidden;
  }

  void cluster() {
    if (o_.method == "random") {
      result_.labels.assign(static_cast<size_t>(samples_), 0);
    } else if (o_.embedding == "source") {
      for (size_t s = 0; s < data_->sources.size(); ++s)
        result_.labels.insert(result_.labels.end(), static_cast<size_t>(data_->sources[s].count), static_cast<int32_t>(s));
    } else if (o_.embedding != "auto" && o_.embedding != "features" && o_.embedding != "hidden") {
      std::map<std::string, int32_t> numbers;
      const std::vector<std::string> names = column("study.embedding", o_.embedding);
      for (const std::string& name : names) numbers.emplace(name, 0);
      int32_t next = 0;
      for (auto& [name, number] : numbers) number = next++;
      for (const std::string& name : names) result_.labels.push_back(numbers[name]);
    } else {
      result_.labels = by_k_means(vectors());
    }
    result_.sizes.assign(static_cast<size_t>(*std::max_element(result_.labels.begin(), result_.labels.end())) + 1, 0);
    for (const int32_t label : result_.labels) ++result_.sizes[static_cast<size_t>(label)];
  }

  std::vector<int32_t> by_k_means(const at::Tensor& vectors) const {
    const auto rows = data::rows_in_memory(vectors.contiguous());
    const auto found = [&](int64_t k) {
      return data::k_means(*rows, {.clusters = k, .iterations = 100, .restarts = 5, .seed = random_.for_purpose("clusters").bits64(0)});
    };
    if (o_.clusters > 0) return found(std::min(o_.clusters, samples_)).labels;
    std::vector<int32_t> best;
    double most = -std::numeric_limits<double>::infinity();
    for (const int64_t k : {64, 256, 1024, 4096}) {
      if (k > samples_ / 4 && !best.empty()) break;
      data::KMeans one = found(std::min<int64_t>(k, samples_));
      const double score = silhouette(vectors, one);
      if (score > most) most = score, best = std::move(one.labels);
    }
    return best;
  }

  std::vector<double> first_weights() const {
    std::vector<double> weights;
    const bool by_size = o_.method == "clusters" ? o_.quota == "proportional" : o_.init == "size";
    for (const int64_t size : result_.sizes)
      weights.push_back(by_size ? static_cast<double>(size) / static_cast<double>(samples_)
                                : 1 / static_cast<double>(result_.sizes.size()));
    return weights;
  }

  std::set<int64_t> selected() const {
    std::set<int64_t> all;
    for (const IterateRound& one : result_.rounds) all.insert(one.added.begin(), one.added.end());
    return all;
  }

  // Samples that are not selected, by cluster.
  std::vector<std::vector<int64_t>> free_members(const std::set<int64_t>& taken) const {
    std::vector<std::vector<int64_t>> members(result_.sizes.size());
    for (const int64_t id : ids_)
      if (taken.count(id) == 0) members[static_cast<size_t>(result_.labels[static_cast<size_t>(id)])].push_back(id);
    return members;
  }

  void draw(int64_t round, int64_t rounds, IterateRound& made) const {
    const std::vector<std::vector<int64_t>> members = free_members(selected());
    std::vector<int64_t> free;
    for (const auto& one : members) free.push_back(static_cast<int64_t>(one.size()));
    const int64_t count = o_.budget * (round + 1) / rounds - o_.budget * round / rounds;
    const base::Random random = random_.for_purpose("draw").for_index(static_cast<uint64_t>(round));
    made.quotas = data::capped_shares(made.weights, free, count, random);
    for (size_t c = 0; c < members.size(); ++c) {
      const std::vector<int64_t> drawn = draw_members(o_.pick, members[c], ids_, quality_, made.quotas[c], random.for_purpose("members"));
      made.added.insert(made.added.end(), drawn.begin(), drawn.end());
    }
    std::sort(made.added.begin(), made.added.end());
  }

  // The samples whose scores decide the new weights.
  std::vector<int64_t> scored_samples(int64_t round, const IterateRound& made) const {
    const base::Random random = random_.for_purpose("scored").for_index(static_cast<uint64_t>(round));
    std::vector<int64_t> all;
    if (o_.score_on == "selected") {
      all = made.added;
    } else {
      std::set<int64_t> taken = selected();
      taken.insert(made.added.begin(), made.added.end());
      const std::vector<std::vector<int64_t>> members = free_members(taken);
      for (size_t c = 0; c < members.size(); ++c)
        for (const int64_t id : draw_members("weighted", members[c], ids_, {}, made.quotas[c], random.for_purpose("fresh")))
          all.push_back(id);
    }
    const auto wanted = static_cast<int64_t>(std::ceil(o_.score_fraction * static_cast<double>(all.size())));
    return draw_members("weighted", all, ids_, {}, wanted, random);
  }

  void take_round(int64_t round, int64_t rounds) {
    const base::RealClock clock;
    IterateRound made;
    made.weights = result_.weights.empty() ? first_weights() : result_.weights;
    draw(round, rounds, made);
    std::vector<double> sums(result_.sizes.size()), counts(result_.sizes.size());
    result_.weights = made.weights;
    if (o_.method == "iterative") {
      const std::vector<int64_t> ids = scored_samples(round, made);
      const std::map<int64_t, double> scores = scores_after_training(round, made, ids);
      CAIRN_CHECK(scores.size() == ids.size(), "{} scores of {} samples", scores.size(), ids.size());
      for (const int64_t id : ids) {
        const auto label = static_cast<size_t>(result_.labels[static_cast<size_t>(id)]);
        sums[label] += scores.at(id);
        ++counts[label];
      }
      for (size_t c = 0; c < sums.size(); ++c) made.scores.push_back(counts[c] > 0 ? sums[c] / counts[c] : kUnscored);
      result_.weights = updated_weights(made.weights, made.scores, o_.update == "replace", o_.floor);
    }
    double entropy = 0;
    for (const double w : made.weights) entropy -= w > 0 ? w * std::log(w) : 0;
    made.effective = std::exp(entropy);
    made.seconds = base::seconds(clock.now());
    result_.rounds.push_back(std::move(made));
    report(round);
    if (world_.rank() == 0) write_iterate_state(result_, identity_, state_file());
  }

  base::Recipe training() const { return with_keys(recipe_.training, {{"log.samples", int64_t{0}}}); }
  train::Start start(const std::filesystem::path& out) const {
    return {.out = out,
            .resume = has_begun(world_, out),
            .cache = setup_.cache,
            .device = o_.device,
            .threads = setup_.threads,
            .terminal = nullptr};
  }

  // By sample, in whatever order they were computed.
  std::map<int64_t, double> scores_after_training(int64_t round, const IterateRound& made, std::vector<int64_t> ids) {
    if (setup_.scoring_order) setup_.scoring_order(ids);
    std::set<int64_t> all = selected();
    all.insert(made.added.begin(), made.added.end());
    base::Recipe recipe = training();
    if (o_.round_steps > 0 || o_.round_epochs > 0) {
      recipe.set("train.steps", o_.round_steps, "the study");
      recipe.set("train.epochs", o_.round_epochs, "the study");
    }
    std::vector<double> before;
    if (o_.scorer == "loss_ratio") before = losses_at_start(ids);
    std::map<int64_t, double> scores;
    run(recipe, setup_.out / fmt::format("round-{}", round), {all.begin(), all.end()}, [&](train::Job& job) {
      const SampleScores found = score_samples(job, ids, {.probabilities = o_.scorer == "reference"});
      const at::Tensor answers = o_.scorer == "reference" ? found.probabilities.argmax(1) : at::Tensor();
      for (size_t i = 0; i < ids.size(); ++i)
        scores[ids[i]] = o_.scorer == "reference"    ? by_reference(ids[i], answers[static_cast<int64_t>(i)].item<int64_t>())
                         : o_.scorer == "perplexity" ? found.loss[i] - found.entropy[i]
                                                     : std::log(std::max(before[i], 1e-6) / std::max(found.loss[i], 1e-6));
    });
    return scores;
  }

  // Losses of the untrained model, or of the one that the recipe starts from.
  std::vector<double> losses_at_start(const std::vector<int64_t>& ids) {
    const std::unique_ptr<train::Job> job = train::build(
        world_, training(), {.out = {}, .cache = setup_.cache, .device = o_.device, .threads = setup_.threads, .terminal = nullptr}, {});
    return score_samples(*job, ids).loss;
  }

  // Whether the sample's label is right, minus whether the model's answer is.
  double by_reference(int64_t id, int64_t answer) {
    if (reference_.empty()) {
      const data::Table all = data::read_table(settings_.data);
      for (const std::string& text : column("study.reference", o_.reference)) reference_.push_back(all.class_of(text));
    }
    const int64_t right = reference_[static_cast<size_t>(id)];
    return static_cast<double>(data_->labels[static_cast<size_t>(id)] == right) - static_cast<double>(answer == right);
  }

  void run(const base::Recipe& recipe, const std::filesystem::path& out, std::vector<int64_t> ids,
           const std::function<void(train::Job&)>& then) {
    bool ended = false;
    train::run(world_, recipe, start(out), data::Subset::of(std::move(ids)), stop_, {.at_end = [&](train::Job& job) {
                 ended = true;
                 then(job);
               }});
    if (!ended) throw Error(Error::Kind::cancelled, "the study was stopped; start it again to go on");
  }

  void train_last() {
    const std::set<int64_t> all = selected();
    result_.selected.assign(all.begin(), all.end());
    const std::vector<int64_t> held = ids_in(data_->opened.samples->held_out());
    run(training(), setup_.out / "final", result_.selected, [&](train::Job& job) {
      const SampleScores found = score_samples(job, held);
      double loss = 0, correct = 0, targets = 0;
      for (size_t i = 0; i < held.size(); ++i)
        loss += found.loss[i] * found.targets[i], correct += found.correct[i] * found.targets[i], targets += found.targets[i];
      result_.loss = loss / std::max(1.0, targets);
      result_.accuracy = correct / std::max(1.0, targets);
    });
  }

  void report(int64_t round) const {
    if (world_.rank() != 0) return;
    const IterateRound& one = result_.rounds.back();
    std::vector<size_t> order(result_.weights.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return result_.weights[a] > result_.weights[b]; });
    world_.log().info("round {}: {} samples added, {:.1f} effective clusters; new weights from {:.4f} (cluster {}) to {:.4f} (cluster {})",
                      round + 1, one.added.size(), one.effective, result_.weights[order.front()], order.front(),
                      result_.weights[order.back()], order.back());
  }

  std::filesystem::path state_file() const { return setup_.out / "state.json"; }
  void load() {
    if (!has_state(world_, state_file())) {
      if (world_.rank() == 0) write_iterate_state(result_, identity_, state_file());  // so that no other recipe goes on in these runs
      return;
    }
    read_iterate_state(result_, state_file(), identity_);
    check_state();
    if (world_.rank() == 0 && !result_.rounds.empty()) world_.log().info("goes on after round {}", result_.rounds.size());
  }

  void check_state() const {
    const auto clusters = result_.sizes.size();
    bool good = result_.weights.size() == (result_.rounds.empty() ? 0 : clusters);
    for (const IterateRound& one : result_.rounds) {
      good = good && one.weights.size() == clusters && one.quotas.size() == clusters;
      for (const int64_t id : one.added) good = good && id >= 0 && id < samples_;
    }
    if (!good) base::fail_corrupt(state_file().string(), "clusters or samples that are not there");
  }

  comm::World& world_;
  const IterateRecipe& recipe_;
  const IterateOptions& o_;
  const StudySetup& setup_;
  const base::Stop& stop_;
  base::Log quiet_;
  train::Settings settings_;
  base::Random random_;
  std::optional<StudySamples> data_;
  int64_t samples_ = 0;
  std::vector<int64_t> ids_;        // of all training samples
  std::vector<double> quality_;     // of each; empty: all the same
  std::vector<int64_t> reference_;  // the right class of each
  uint64_t identity_ = 0;
  IterateResult result_;
};

}  // namespace

IterateRecipe read_iterate(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  StudyRecipe parts = split_recipe(file, sets);
  IterateRecipe found{.study = parts.all.read(iterate_schema()), .training = std::move(parts.training)};
  parts.all.check_all_used(train::recipe_sections());
  base::Recipe read = found.training;
  const train::Settings settings = train::read_settings(read);
  const IterateOptions& o = found.study;
  const bool table = settings.data.needs().table;
  if (settings.data.needs().is_text() && settings.data.packing != data::Packing::none)
    base::fail_input("data.packing: whole documents are selected. Set data.packing = none.");
  if (o.method == "iterative" && o.scorer == "reference" && (!table || o.reference.empty()))
    base::fail_input("study.scorer = reference: needs a column with the right classes. Set study.reference to a column of a table.");
  if (o.round_steps > 0 && o.round_epochs > 0)
    base::fail_input("study.round_epochs = {}: study.round_steps = {} ends a round too. Leave one of them out.", o.round_epochs,
                     o.round_steps);
  if (o.method == "clusters" && o.quota == "equal" && o.clusters > o.budget)
    base::fail_input("study.quota = equal: {} of {} clusters would get nothing of a budget of {}. Use fewer clusters.",
                     o.clusters - o.budget, o.clusters, o.budget);
  return found;
}

IterateResult run_iterate(comm::World& world, const IterateRecipe& recipe, const StudySetup& setup, const base::Stop& stop) {
  return Iterate(world, recipe, setup, stop).run();
}

}  // namespace cairn::study
