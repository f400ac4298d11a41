#include "evaluate/retrieval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "kernels/aten.h"

namespace cairn::evaluate {
namespace {

constexpr size_t kShort = 10;

double gain(double grade, size_t rank) { return (std::exp2(grade) - 1) / std::log2(static_cast<double>(rank) + 1); }

double found_share(std::span<const data::Match> results, std::span<const data::Judgement> judged, size_t depth) {
  const auto seen = results.first(std::min(depth, results.size()));
  const auto found = std::ranges::count_if(
      judged, [&](const data::Judgement& one) { return std::ranges::find(seen, one.passage, &data::Match::id) != seen.end(); });
  return static_cast<double>(found) / static_cast<double>(judged.size());
}

}  // namespace

RetrievalFigures score_results(std::span<const data::Match> results, std::span<const data::Judgement> judged) {
  CAIRN_CHECK(!judged.empty(), "{} results without a judgement", results.size());
  RetrievalFigures figures{.queries = 1};
  double best = 0, reached = 0;
  for (size_t rank = 1; rank <= std::min(kShort, results.size()); ++rank) {
    const auto relevant = std::ranges::find(judged, results[rank - 1].id, &data::Judgement::passage);
    if (relevant == judged.end()) continue;
    if (figures.mrr_10 == 0) figures.mrr_10 = 1 / static_cast<double>(rank);
    reached += gain(relevant->grade, rank);
  }
  std::vector<double> grades;
  for (const data::Judgement& one : judged) grades.push_back(one.grade);
  std::ranges::sort(grades, std::greater<>());
  for (size_t rank = 1; rank <= std::min(kShort, grades.size()); ++rank) best += gain(grades[rank - 1], rank);
  figures.ndcg_10 = reached / best;
  figures.recall_10 = found_share(results, judged, kShort);
  figures.recall_100 = found_share(results, judged, 100);
  figures.recall_1000 = found_share(results, judged, 1000);
  return figures;
}

RetrievalResult evaluate_retrieval(const TextEncoder& encoder, const data::TokenTable& queries, const data::TokenTable& passages,
                                   const std::vector<std::vector<data::Judgement>>& judged, const RetrievalOptions& options,
                                   const OnResults& on_results, const OnProgress& progress) {
  std::vector<int64_t> asked, all(static_cast<size_t>(passages.size()));
  for (size_t query = 0; query < judged.size(); ++query)
    if (!judged[query].empty()) asked.push_back(static_cast<int64_t>(query));
  std::iota(all.begin(), all.end(), int64_t{0});
  const base::RealClock clock;
  RetrievalResult result;
  std::chrono::nanoseconds since = clock.now();
  const auto passed = [&] {
    const std::chrono::nanoseconds begun = std::exchange(since, clock.now());
    return base::seconds(since - begun);
  };
  const std::unique_ptr<data::RowSource> collection =
      data::rows_in_memory(text_vectors(encoder, passages, all, options.pooling, options.batch, progress));
  result.encode_s = passed();
  const at::Tensor vectors = text_vectors(encoder, queries, asked, options.pooling, options.batch);
  passed();
  const at::Device device = encoder.weights.get({0}).device();
  const std::vector<std::vector<data::Match>> found =
      data::top_k(vectors, *collection, options.results, {.device = device.is_cuda() ? std::optional(device) : std::nullopt});
  result.search_s = passed();
  for (size_t i = 0; i < asked.size(); ++i) {
    const RetrievalFigures one = score_results(found[i], judged[static_cast<size_t>(asked[i])]);
    if (on_results) on_results(asked[i], found[i]);
    RetrievalFigures& sum = result.figures;
    sum.mrr_10 += one.mrr_10, sum.ndcg_10 += one.ndcg_10, sum.recall_10 += one.recall_10, sum.recall_100 += one.recall_100;
    sum.recall_1000 += one.recall_1000, sum.queries += 1;
  }
  if (asked.empty()) return result;
  const auto count = static_cast<double>(asked.size());
  for (double* one : {&result.figures.mrr_10, &result.figures.ndcg_10, &result.figures.recall_10, &result.figures.recall_100,
                      &result.figures.recall_1000})
    *one /= count;
  const auto timed = std::min<size_t>(asked.size(), static_cast<size_t>(options.timed));
  passed();
  for (size_t i = 0; i < timed; ++i)
    (void)data::top_k(text_vectors(encoder, queries, std::span(asked).subspan(i, 1), options.pooling, 1), *collection, options.results);
  result.query_s = timed == 0 ? 0 : passed() / static_cast<double>(timed);
  return result;
}

}  // namespace cairn::evaluate
