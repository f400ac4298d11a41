// `cairn bench select`: what choosing data costs. Samplers with feedback, vectors of documents, clustering and search.
#include <ATen/Parallel.h>

#include "base/check.h"
#include "bench/select_parts.h"

namespace cairn::study {

std::vector<BenchRow> bench_select(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  const int threads = at::get_num_threads();
  for (const auto part : {bench_samplers, bench_embedding, bench_search}) {
    at::set_num_threads(threads);  // runs of the trainer in a part before may have set other ones
    for (BenchRow& row : part(options, log)) rows.push_back(std::move(row));
  }
  if (rows.empty())
    base::fail_input("--case {}: the cases are \"seta against shuffled\", \"infobatch against shuffled\", embedding, k-means and top-k",
                     options.only);
  return rows;
}

}  // namespace cairn::study
