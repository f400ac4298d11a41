// How well an encoder finds passages: exact search over a whole collection, against judgements.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/retrieval/texts.h"
#include "data/search/top_k.h"
#include "evaluate/text_vectors.h"

namespace cairn::evaluate {

// Means over the queries that have a judged passage.
struct RetrievalFigures {
  int64_t queries = 0;
  double mrr_10 = 0;     // 1 / rank of the first relevant passage among ten, else 0
  double ndcg_10 = 0;    // gain 2^grade - 1, discount log2(rank + 1), as a share of the best order's
  double recall_10 = 0;  // relevant passages found among ten, as a share of all of them
  double recall_100 = 0;
  double recall_1000 = 0;
};

// One query's results, best first, against its judged passages.
RetrievalFigures score_results(std::span<const data::Match> results, std::span<const data::Judgement> judged);

struct RetrievalOptions {
  data::RetrievalPooling pooling = data::RetrievalPooling::last;
  int64_t batch = 64;      // texts that are encoded at once
  int64_t results = 1000;  // of each query
  int64_t timed = 100;     // queries that are encoded and searched for one by one, to measure the time
};

struct RetrievalResult {
  RetrievalFigures figures;
  double encode_s = 0, search_s = 0;  // of the collection; of all queries together
  double query_s = 0;                 // mean time to encode one query and search for it, alone
};

// Called with each judged query's number and results.
using OnResults = std::function<void(int64_t query, std::span<const data::Match> results)>;

RetrievalResult evaluate_retrieval(const TextEncoder& encoder, const data::TokenTable& queries, const data::TokenTable& passages,
                                   const std::vector<std::vector<data::Judgement>>& judged, const RetrievalOptions& options,
                                   const OnResults& on_results = {}, const OnProgress& progress = {});

}  // namespace cairn::evaluate
