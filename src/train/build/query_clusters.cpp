// Clusters of queries for topic-aware sampling, where the recipe names no file of them: k-means on the vectors that the model to start with
// makes of the training queries. The first rank makes them; the others are told.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/retrieval/dataset.h"
#include "data/search/k_means.h"
#include "train/build/build_steps.h"
#include "train/encoder.h"

namespace cairn::train {
namespace {

constexpr const char* kClustersFile = "clusters.tsv";
constexpr int64_t kEncodeBatch = 64;
constexpr int32_t kNoCluster = -1;

// By query: its cluster.
std::vector<int32_t> labels_of(const std::vector<std::vector<int64_t>>& clusters, int64_t queries) {
  std::vector<int32_t> labels(static_cast<size_t>(queries), kNoCluster);
  for (size_t cluster = 0; cluster < clusters.size(); ++cluster)
    for (const int64_t query : clusters[cluster]) labels[static_cast<size_t>(query)] = static_cast<int32_t>(cluster);
  return labels;
}

std::vector<int32_t> make_clusters(Job& job, const data::RetrievalDataset& samples, base::Log& log) {
  const Settings& s = job.config.settings;
  std::vector<int64_t> queries;
  const data::SampleRange training = samples.training();
  for (int64_t id = training.first; id < training.first + training.count; ++id) queries.push_back(samples.pair(id).query);
  std::ranges::sort(queries);
  queries.erase(std::unique(queries.begin(), queries.end()), queries.end());
  OpenedEncoder encoder = open_encoder(s.model.from, "model.from", data::positions_needed(s.data), job.config.device, log);
  const at::Tensor vectors =
      evaluate::text_vectors(encoder.texts(), samples.texts().query_tokens, queries, s.data.retrieval.pooling, kEncodeBatch);
  const at::Device device = job.config.device;
  const data::KMeans found =
      data::k_means(*data::rows_in_memory(vectors), {.clusters = s.data.order.groups,
                                                     .seed = static_cast<uint64_t>(s.train.seed),
                                                     .device = device.is_cuda() ? std::optional(device) : std::nullopt});
  log.info("clusters of queries: made from {}, clusters={} queries={} iterations={}", encoder.path, s.data.order.groups, queries.size(),
           found.iterations);
  if (job.config.writes) {
    base::make_folder(job.config.out);
    base::write_atomically(job.config.out / kClustersFile, data::format_clusters(queries, found.labels, samples.texts().queries));
  }
  std::vector<int32_t> labels(static_cast<size_t>(samples.texts().queries.size()), kNoCluster);
  for (size_t i = 0; i < queries.size(); ++i) labels[static_cast<size_t>(queries[i])] = found.labels[i];
  return labels;
}

}  // namespace

void cluster_queries(Job& job, comm::World& world, const Start& start) {
  const data::DataOptions& options = job.config.settings.data;
  auto* const samples = dynamic_cast<data::RetrievalDataset*>(job.data.samples.get());
  if (!data::sampler_needs(options.sampler).retrieval || !samples || !options.order.clusters.empty()) return;
  const std::string& from = job.config.settings.model.from;
  if (from.empty()) return;  // the sampler refuses
  const int64_t queries = samples->texts().queries.size();
  std::vector<int32_t> labels(static_cast<size_t>(queries), kNoCluster);
  if (world.rank() == 0) {
    const std::filesystem::path kept = job.config.out / kClustersFile;
    labels = start.resume && !job.config.out.empty() && base::path_exists(kept)
                 ? labels_of(data::read_clusters(kept, samples->texts().queries), queries)
                 : make_clusters(job, *samples, world.log());
  }
  if (world.size() > 1) {
    constexpr auto kDeadline = std::chrono::hours(24);  // the first rank may encode millions of queries meanwhile
    comm::Group& group = world.group(world.everyone().ranks(), "clusters");
    group.set_deadline(kDeadline);
    group.broadcast({labels.data(), queries, comm::Dtype::i32}, 0, {comm::Purpose::data, "clusters of queries"}).wait_host();
  }
  std::vector<std::vector<int64_t>> clusters;
  for (int64_t query = 0; query < queries; ++query) {
    const int32_t label = labels[static_cast<size_t>(query)];
    if (label == kNoCluster) continue;
    if (clusters.size() <= static_cast<size_t>(label)) clusters.resize(static_cast<size_t>(label) + 1);
    clusters[static_cast<size_t>(label)].push_back(query);
  }
  samples->set_clusters(std::move(clusters));
}

}  // namespace cairn::train
