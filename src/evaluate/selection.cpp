#include "evaluate/selection.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/random.h"
#include "comm/group.h"
#include "data/search/k_means.h"
#include "data/search/top_k.h"
#include "data/selection/cluster_split.h"
#include "data/selection/duplicates.h"
#include "kernels/aten.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kMembersOfCluster = 5000;  // of dedup
constexpr int64_t kConceptClusters = 100, kKmqClusters = 256;
constexpr double kChangedMax = 0.001;
constexpr double kFlatShares = 1.5;

constexpr SelectionMethod kMethods[] = {
    {.name = "random", .about = "documents at random, each as likely as the others"},
    {.name = "balanced", .about = "equally many of each source or label, at random", .groups = true},
    {.name = "dedup", .about = "all but near-duplicates, by meaning (SemDeDup)", .vectors = true},
    {.name = "concept",
     .about = "many of complex concepts, few of simple ones (density-based pruning)",
     .vectors = true,
     .misled_by_duplicates = true},
    {.name = "kmq", .about = "a share of every cluster, by quality within each (k-means-quality)", .vectors = true},
    {.name = "rds", .about = "the documents most like target examples (RDS+)", .vectors = true, .queries = true},
    {.name = "top", .about = "the highest, lowest or middle scores of a column", .scores = true},
};

// How ranks share the work of one selection.
class SelectionRanks {
 public:
  explicit SelectionRanks(comm::Group* group) : group_(group) {}
  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }

  data::RowShare share(int64_t rows) const {
    data::RowShare share = data::share_of_rank(rows, rank(), size());
    if (size() > 1) share.add_ranks = adder();
    return share;
  }
  std::function<void(std::span<double>)> adder() const {
    if (size() == 1) return {};
    return [group = group_](std::span<double> numbers) {
      group
          ->all_reduce({numbers.data(), static_cast<int64_t>(numbers.size()), comm::Dtype::f64}, comm::Reduce::sum,
                       {comm::Purpose::control, "selection"})
          .wait_host();
    };
  }

  // Lists of matches of every rank, merged.
  std::vector<std::vector<data::Match>> merge(std::vector<std::vector<data::Match>> mine, int64_t k) const {
    if (size() == 1) return mine;
    const auto queries = static_cast<int64_t>(mine.size());
    std::vector<int64_t> ids(static_cast<size_t>(queries * k), -1), all_ids(ids.size() * static_cast<size_t>(size()));
    std::vector<float> scores(ids.size()), all_scores(all_ids.size());
    for (size_t q = 0; q < mine.size(); ++q)
      for (size_t i = 0; i < mine[q].size(); ++i) {
        const size_t at = q * static_cast<size_t>(k) + i;
        ids[at] = mine[q][i].id;
        scores[at] = mine[q][i].score;
      }
    const comm::Label label{comm::Purpose::control, "matches"};
    const auto count = static_cast<int64_t>(ids.size());
    group_->all_gather({all_ids.data(), count * size(), comm::Dtype::i64}, {ids.data(), count, comm::Dtype::i64}, label).wait_host();
    group_->all_gather({all_scores.data(), count * size(), comm::Dtype::f32}, {scores.data(), count, comm::Dtype::f32}, label).wait_host();
    for (size_t q = 0; q < mine.size(); ++q) {
      std::vector<std::vector<data::Match>> lists(static_cast<size_t>(size()));
      for (size_t r = 0; r < lists.size(); ++r)
        for (size_t i = 0; i < static_cast<size_t>(k); ++i)
          if (const size_t at = (r * mine.size() + q) * static_cast<size_t>(k) + i; all_ids[at] >= 0)
            lists[r].push_back({all_ids[at], all_scores[at]});
      mine[q] = data::merge_matches(lists, k);
    }
    return mine;
  }

 private:
  comm::Group* group_;
};

base::OrderedJson quantiles(std::vector<double> values) {
  base::OrderedJson found = base::OrderedJson::object();
  if (values.empty()) return found;
  std::ranges::sort(values);
  for (const auto& [name, at] : {std::pair{"min", 0.0}, {"q25", 0.25}, {"median", 0.5}, {"q75", 0.75}, {"max", 1.0}})
    found[name] = values[static_cast<size_t>(at * static_cast<double>(values.size() - 1))];
  return found;
}

class Selecting {
 public:
  Selecting(const SelectionOptions& options, const SelectionInputs& inputs, comm::Group* ranks, const OnSelectionProgress& progress)
      : options_(options), inputs_(inputs), ranks_(ranks), progress_(progress) {}

  SelectionResult run() {
    const SelectionMethod& method = selection_method(options_.method);
    const auto candidates = static_cast<int64_t>(inputs_.ids.size());
    if (options_.keep > candidates)
      base::fail_input("--keep {}: there are {} documents to choose from. Keep at most these.", options_.keep, candidates);
    CAIRN_CHECK(!method.vectors || (inputs_.vectors && inputs_.vectors->rows() == candidates), "vectors of {} documents", candidates);
    const std::string name = method.name;
    if (name == "random") result_.kept = data::pick_random(inputs_.ids, options_.keep, base::Random(options_.seed));
    if (name == "balanced") balance();
    if (name == "dedup") deduplicate();
    if (name == "concept") prune();
    if (name == "kmq") pick_by_quality();
    if (name == "rds") pick_like_targets();
    if (name == "top") pick_top();
    return std::move(result_);
  }

 private:
  std::function<void(int64_t, int64_t)> shown(const std::string& doing) const {
    if (!progress_) return {};
    return [this, doing](int64_t done, int64_t of) { progress_(doing, done, of); };
  }

  data::KMeans cluster(int64_t clusters, bool spherical) {
    const int64_t rows = inputs_.vectors->rows();
    if (options_.clusters > rows) base::fail_input("--clusters {}: there are {} documents. Use fewer clusters.", options_.clusters, rows);
    const data::KMeansOptions how{.clusters = std::clamp<int64_t>(options_.clusters > 0 ? options_.clusters : clusters, 1, rows),
                                  .spherical = spherical,
                                  .iterations = options_.iterations,
                                  .restarts = options_.restarts,
                                  .changed_max = kChangedMax,
                                  .seed = options_.seed,
                                  .device = options_.device,
                                  .progress = shown("clusters")};
    data::KMeans found = data::k_means(*inputs_.vectors, how, ranks_.share(rows));
    result_.clusters = found.labels;
    result_.figures["clusters"] = how.clusters;
    result_.figures["iterations"] = found.iterations;
    result_.figures["mean_squared_distance"] = found.inertia / static_cast<double>(rows);
    return found;
  }

  // The scalar product of each row with its centroid, as exact as search results.
  std::vector<float> closeness(const data::KMeans& clusters) const {
    const data::RowShare share = ranks_.share(inputs_.vectors->rows());
    constexpr int64_t kRows = 1024;
    std::vector<double> found(clusters.labels.size());
    const int64_t dim = inputs_.vectors->dim();
    for (int64_t first = share.first; first < share.first + share.count; first += kRows) {
      const int64_t count = std::min(kRows, share.first + share.count - first);
      const at::Tensor rows = inputs_.vectors->read(first, count);
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(first + i);
        found[at] = static_cast<double>(data::scalar_product(rows.const_data_ptr<float>() + i * dim,
                                                             clusters.centroids.const_data_ptr<float>() + clusters.labels[at] * dim, dim));
      }
    }
    if (share.add_ranks) share.add_ranks(found);
    return {found.begin(), found.end()};
  }

  void balance() { result_.kept = data::pick_balanced(inputs_.ids, inputs_.groups, options_.keep, base::Random(options_.seed)); }

  void deduplicate() {
    const int64_t rows = inputs_.vectors->rows();
    data::KMeans clusters = cluster(std::max<int64_t>(1, rows / kMembersOfCluster), true);
    const int64_t divided = data::split_large_clusters(*inputs_.vectors,
                                                       {.members_max = data::kComparedMax,
                                                        .seed = options_.seed,
                                                        .share = [this](int64_t of) { return ranks_.share(of); },
                                                        .device = options_.device},
                                                       clusters);
    const auto number = static_cast<int64_t>(clusters.sizes.size());
    if (divided > 0) {
      result_.clusters = clusters.labels;
      result_.figures["clusters_divided"] = divided;
      result_.figures["clusters_after_division"] = number;
    }
    result_.scores =
        data::nearest_before(*inputs_.vectors, clusters.labels, closeness(clusters), number,
                             {.rank = ranks_.rank(), .ranks = ranks_.size(), .add_ranks = ranks_.adder(), .progress = shown("duplicates")});
    result_.score_name = "similarity to the most similar document before it in its cluster";
    const data::Deduplicated found =
        options_.eps >= 0 ? data::drop_duplicates(result_.scores, options_.eps) : data::keep_least_duplicate(result_.scores, options_.keep);
    if (options_.eps >= 0 && options_.keep > static_cast<int64_t>(found.kept.size()))
      base::fail_input("--keep {} --eps {}: {} documents are left without duplicates. Give one of the two options.", options_.keep,
                       options_.eps, found.kept.size());
    result_.kept = found.kept;
    result_.figures["eps"] = found.eps;
    result_.figures["duplicates"] = rows - static_cast<int64_t>(found.kept.size());
  }

  void prune() {
    const data::KMeans clusters = cluster(std::min(kConceptClusters, std::max<int64_t>(1, options_.keep)), true);
    result_.scores = closeness(clusters);
    result_.score_name = "similarity to the centre of the cluster";
    data::ConceptOptions how = options_.concepts;
    how.keep = options_.keep;
    how.seed = options_.seed;
    const auto number = static_cast<int64_t>(clusters.sizes.size());
    if (how.shares == data::ConceptShares::density && how.neighbours >= number - 1 && number > 1)
      result_.warnings.push_back(
          fmt::format("{} clusters have {} others each: with {} neighbours their distances are the same. Use more clusters.", number,
                      number - 1, how.neighbours));
    const data::ConceptResult found = data::prune_concepts(inputs_.ids, clusters.labels, result_.scores, clusters.centroids, how);
    result_.kept = found.kept;
    if (how.shares == data::ConceptShares::density && found.share_ratio < kFlatShares)
      result_.warnings.push_back(fmt::format(
          "the largest share is {:.2f} times the smallest, so pruning is nearly uniform. Use a lower --temperature.", found.share_ratio));
    base::OrderedJson table = base::OrderedJson::array();
    std::vector<double> intra, inter, kept_share;
    for (const data::ConceptCluster& one : found.clusters) {
      table.push_back({one.size, one.intra, one.inter, one.share, one.quota});
      intra.push_back(one.intra);
      inter.push_back(one.inter);
      if (one.size > 0) kept_share.push_back(static_cast<double>(one.quota) / static_cast<double>(one.size));
    }
    result_.figures["lambda"] = found.lambda;
    result_.figures["share_ratio"] = found.share_ratio;
    result_.figures["at_lower_bound"] = found.at_lower;
    result_.figures["at_upper_bound"] = found.at_upper;
    result_.figures["distance_within"] = quantiles(intra);
    result_.figures["distance_between"] = quantiles(inter);
    result_.figures["kept_of_cluster"] = quantiles(kept_share);
    result_.figures["cluster_table"] = {{"columns", {"size", "distance_within", "distance_between", "share", "quota"}}, {"rows", table}};
  }

  void pick_by_quality() {
    const data::KMeans clusters = cluster(std::min(kKmqClusters, std::max<int64_t>(1, options_.keep)), false);
    const data::KmqResult found =
        data::pick_kmq(inputs_.ids, clusters.labels, static_cast<int64_t>(clusters.sizes.size()), inputs_.scores,
                       {.keep = options_.keep, .quota = options_.quota, .pick = options_.pick, .seed = options_.seed});
    result_.kept = found.kept;
    result_.scores = inputs_.scores;
    result_.score_name = "quality";
    base::OrderedJson table = base::OrderedJson::array();
    for (size_t c = 0; c < found.sizes.size(); ++c) table.push_back({found.sizes[c], found.quotas[c]});
    result_.figures["cluster_table"] = {{"columns", {"size", "quota"}}, {"rows", table}};
  }

  void pick_like_targets() {
    const int64_t rows = inputs_.vectors->rows();
    const data::RowShare share = ranks_.share(rows);
    const data::PoolSearch search{.rows = rows,
                                  .top =
                                      [&](const at::Tensor& queries, int64_t k, const std::vector<std::optional<data::Match>>& after) {
                                        data::TopKOptions how{
                                            .after = after, .share = share, .device = options_.device, .progress = shown("search")};
                                        return ranks_.merge(data::top_k(queries, *inputs_.vectors, k, how), k);
                                      },
                                  .best =
                                      [&](const at::Tensor& queries) {
                                        return data::best_scores(queries, *inputs_.vectors, share, shown("search"), options_.device);
                                      }};
    const data::TargetResult found = data::pick_for_targets(inputs_.tasks, search, options_.keep, options_.within, inputs_.excluded);
    for (const data::TargetPick& pick : found.picks) result_.kept.push_back(pick.position);
    std::ranges::sort(result_.kept);
    describe_targets(found, search);
  }

  void describe_targets(const data::TargetResult& found, const data::PoolSearch& search) {
    base::OrderedJson tasks = base::OrderedJson::object();
    result_.scores.assign(inputs_.ids.size(), -1);
    for (size_t t = 0; t < inputs_.tasks.size(); ++t) {
      const std::vector<float> best = search.best(inputs_.tasks[t].queries);
      std::vector<double> chosen;
      for (const data::TargetPick& pick : found.picks)
        if (pick.task == static_cast<int32_t>(t)) chosen.push_back(static_cast<double>(pick.score));
      for (size_t i = 0; i < best.size(); ++i) result_.scores[i] = std::max(result_.scores[i], best[i]);
      tasks[inputs_.tasks[t].name] = {{"queries", inputs_.tasks[t].queries.size(0)},
                                      {"documents", chosen.size()},
                                      {"scores", quantiles(chosen)},
                                      {"wanted_by_others_too", overlap(t, best)}};
      if (options_.within == data::WithinTask::round_robin)
        tasks[inputs_.tasks[t].name]["documents_of_queries"] = found.picks_of_queries[t];
    }
    result_.score_name = "similarity to the nearest query";
    result_.figures["within_task"] = base::enum_name<data::WithinTask>(data::kWithinTaskNames, options_.within);
    result_.figures["across_tasks"] = "round_robin";
    result_.figures["rescans"] = found.rescans;
    result_.figures["tasks"] = tasks;
    wanted_.clear();
  }

  // How many documents that another task got are among the best of this one, as many as were kept.
  int64_t overlap(size_t task, const std::vector<float>& best) {
    std::vector<int64_t> top = data::pick_by_score(best, options_.keep, data::ScoreOrder::highest);
    wanted_.push_back(top);
    int64_t common = 0;
    for (size_t other = 0; other < task; ++other) {
      std::vector<int64_t> both;
      std::ranges::set_intersection(wanted_[other], top, std::back_inserter(both));
      common += static_cast<int64_t>(both.size());
    }
    return common;
  }

  void pick_top() {
    result_.scores = inputs_.scores;
    result_.score_name = "score";
    result_.kept = data::pick_by_score(inputs_.scores, options_.keep, options_.order);
  }

  const SelectionOptions& options_;
  const SelectionInputs& inputs_;
  SelectionRanks ranks_;
  const OnSelectionProgress& progress_;
  SelectionResult result_;
  std::vector<std::vector<int64_t>> wanted_;
};

}  // namespace

const SelectionMethod& selection_method(const std::string& name) {
  const auto found = std::ranges::find_if(kMethods, [&](const SelectionMethod& one) { return name == one.name; });
  if (found == std::end(kMethods)) base::fail_unknown("method of selection", name, selection_methods());
  return *found;
}

std::vector<std::string> selection_methods() {
  std::vector<std::string> names;
  for (const SelectionMethod& one : kMethods) names.emplace_back(one.name);
  return names;
}

SelectionResult select_documents(const SelectionOptions& options, const SelectionInputs& inputs, comm::Group* ranks,
                                 const OnSelectionProgress& progress) {
  return Selecting(options, inputs, ranks, progress).run();
}

}  // namespace cairn::evaluate
