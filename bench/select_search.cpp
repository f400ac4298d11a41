// k-means and exact search, ours and the PyPI package faiss-cpu in turn: the same vectors, start and threads. The results must be the same:
// inertia within 0.1 %, neighbours up to the rounding of scores in fp32.
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "bench/peer_python.h"
#include "bench/select_parts.h"
#include "data/search/k_means.h"
#include "data/search/top_k.h"
#include "kernels/aten.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kSearchRounds = 5;
constexpr double kSearchGoal = 0.8, kInertiaApart = 1e-3;
constexpr float kRounding = 1e-5f;  // of scores in fp32, of vectors of length 1
constexpr int64_t kRows = 100'000, kWidth = 256, kClusters = 500, kIterations = 10, kAsked = 500, kNeighbours = 100;

// Rows around as many centres as there are clusters.
at::Tensor clustered_rows(int64_t rows, uint64_t seed) {
  const auto normal = [&](int64_t count, const char* name) {
    const at::Tensor made = at::empty({count, kWidth});
    base::Random(seed).for_name(name).fill_normal({made.mutable_data_ptr<float>(), static_cast<size_t>(made.numel())});
    return made;
  };
  const at::Tensor centres = normal(kClusters, "centres"), made = normal(rows, rows == kRows ? "rows" : "queries");
  made.add_(centres.index_select(0, at::arange(rows, at::kLong).remainder(kClusters)));
  return (made / made.norm(2, 1, true)).contiguous();
}

void write_floats(const std::string& file, const at::Tensor& rows) {
  base::write_atomically(file, {static_cast<const char*>(rows.const_data_ptr()), static_cast<size_t>(rows.numel()) * sizeof(float)});
}

struct Found {
  double k_means_seconds = 0, top_k_seconds = 0, inertia = 0;
  std::vector<std::vector<data::Match>> matches = {};
};

class SearchBench {
 public:
  SearchBench(const BenchOptions& options, base::Log& log)
      : options_(options),
        python_(peer_python(options, log, "faiss", {"faiss-cpu==1.15.1", "numpy"}, "about 100 MB, half a minute")),
        rows_(clustered_rows(kRows, 1)),
        queries_(clustered_rows(kAsked, 2)),
        start_(rows_.narrow(0, 0, kClusters).contiguous()),
        source_(data::rows_in_memory(rows_)) {
    for (const auto& [name, tensor] : {std::pair{"rows", &rows_}, {"queries", &queries_}, {"start", &start_}})
      write_floats(file(name), *tensor);
  }

  Found ours() const {
    Found found;
    found.k_means_seconds = seconds([&] {
      found.inertia =
          data::k_means(*source_, {.clusters = kClusters, .iterations = kIterations, .changed_max = -1, .start = start_}).inertia;
    });
    found.top_k_seconds = seconds([&] { found.matches = data::top_k(queries_, *source_, kNeighbours); });
    return found;
  }

  Found peer() const {
    const base::Json settings = {{"folder", options_.scratch}, {"width", kWidth},           {"clusters", kClusters},
                                 {"iterations", kIterations},  {"neighbours", kNeighbours}, {"threads", at::get_num_threads()}};
    const ProcessResult ended = run_program({python_, fmt::format("{}/select_peer.py", CAIRN_BENCH_FOLDER), base::compact(settings)},
                                            options_.scratch + "/peer.log");
    if (ended.exit_code != 0) base::fail_input("the peer's run failed: {}", ended.output);
    const base::Json result = base::parse_json(ended.output.substr(ended.output.rfind('{')));
    if (!result.is_object()) base::fail_input("the peer's run printed no JSON: {}", ended.output);
    Found found{.k_means_seconds = result["k_means_seconds"].get<double>(),
                .top_k_seconds = result["top_k_seconds"].get<double>(),
                .inertia = result["inertia"].get<double>()};
    const std::string ids = base::read_file(file("ids"), kBytesMax), scores = base::read_file(file("scores"), kBytesMax);
    CAIRN_CHECK(ids.size() == kAsked * kNeighbours * sizeof(int64_t), "{} bytes of ids", ids.size());
    for (int64_t q = 0, at = 0; q < kAsked; ++q)
      for (std::vector<data::Match>& list = found.matches.emplace_back(); std::ssize(list) < kNeighbours; ++at) {
        data::Match& match = list.emplace_back();
        std::memcpy(&match.id, ids.data() + at * static_cast<int64_t>(sizeof match.id), sizeof match.id);
        std::memcpy(&match.score, scores.data() + at * static_cast<int64_t>(sizeof match.score), sizeof match.score);
      }
    return found;
  }

 private:
  static constexpr int64_t kBytesMax = int64_t{1} << 30;

  std::string file(const std::string& name) const { return options_.scratch + "/" + name; }
  template <typename Act>
  double seconds(const Act& act) const {
    const auto began = clock_.now();
    act();
    return std::chrono::duration<double>(clock_.now() - began).count();
  }

  const BenchOptions& options_;
  std::string python_;
  at::Tensor rows_, queries_, start_;
  std::unique_ptr<data::RowSource> source_;
  base::RealClock clock_;
};

// Refuses results that are not the same. Ids that one of the two lacks must have the score of the last one, up to rounding.
void expect_same(const Found& ours, const Found& peer) {
  if (std::abs(ours.inertia / peer.inertia - 1) > kInertiaApart)
    base::fail_input("k-means: inertia {} of ours and {} of the peer are not within 0.1 %", ours.inertia, peer.inertia);
  for (size_t q = 0; q < ours.matches.size(); ++q) {
    std::set<int64_t> ids;
    for (const data::Match& match : peer.matches[q]) ids.insert(match.id);
    for (const data::Match& match : ours.matches[q])
      if (!ids.contains(match.id) && match.score > peer.matches[q].back().score + kRounding)
        base::fail_input("top-k: the peer lacks row {} for query {}, with a score of {}", match.id, q, match.score);
    for (size_t i = 0; i < ours.matches[q].size(); ++i)
      if (std::abs(ours.matches[q][i].score - peer.matches[q][i].score) > kRounding)
        base::fail_input("top-k: the {}th score for query {} is {} of ours and {} of the peer", i, q, ours.matches[q][i].score,
                         peer.matches[q][i].score);
  }
}

}  // namespace

std::vector<BenchRow> bench_search(const BenchOptions& options, base::Log& log) {
  if (!options.only.empty() && options.only != "k-means" && options.only != "top-k") return {};
  const SearchBench bench(options, log);
  std::vector<double> ours[2], peer[2];
  for (int round = 0; round < kSearchRounds; ++round) {
    Found found;
    if (round % 2 == 0) found = bench.ours();
    const Found theirs = bench.peer();
    if (round % 2 == 1) found = bench.ours();
    expect_same(found, theirs);
    ours[0].push_back(found.k_means_seconds);
    ours[1].push_back(found.top_k_seconds);
    peer[0].push_back(theirs.k_means_seconds);
    peer[1].push_back(theirs.top_k_seconds);
    log.info("k-means: {:.2f} s, faiss {:.2f} s, inertia {:.2f} and {:.2f}; top-k: {:.2f} s, faiss {:.2f} s", found.k_means_seconds,
             theirs.k_means_seconds, found.inertia, theirs.inertia, found.top_k_seconds, theirs.top_k_seconds);
  }
  return {compare(fmt::format("k-means, {} x {}, {} clusters, {} iterations, against faiss-cpu", kRows, kWidth, kClusters, kIterations),
                  ours[0], peer[0], "s", Better::lower, kSearchGoal),
          compare(fmt::format("top-k, {} queries, {} of {} rows, against faiss-cpu", kAsked, kNeighbours, kRows), ours[1], peer[1], "s",
                  Better::lower, kSearchGoal)};
}

}  // namespace cairn::study
