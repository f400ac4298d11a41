#include "cli/commands/eval_retrieval.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/recipe.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/environment.h"
#include "cli/stderr_terminal.h"
#include "evaluate/retrieval.h"
#include "kernels/device.h"
#include "train/encoder.h"

namespace cairn::cli {
namespace {

constexpr size_t kResultsKept = 10;  // of each query in --items

// retrieval.* as the run had them, and as --set says.
data::RetrievalOptions options_for(const std::string& folder, const EvalArguments& a) {
  data::RetrievalOptions options;
  train::read_retrieval_file(folder, options);
  base::Recipe recipe;
  for (const std::string& set : a.sets) recipe.set(set);
  options = recipe.read(data::retrieval_schema(), options);
  recipe.check_all_used();
  return options;
}

void show(const EvalArguments& a, const train::OpenedEncoder& encoder, const evaluate::RetrievalResult& result, int64_t passages) {
  const evaluate::RetrievalFigures& f = result.figures;
  const std::pair<const char*, double> figures[] = {{"MRR@10", f.mrr_10},           {"NDCG@10", f.ndcg_10},
                                                    {"recall@10", f.recall_10},     {"recall@100", f.recall_100},
                                                    {"recall@1000", f.recall_1000}, {"ms per query", 1000 * result.query_s}};
  base::Terminal terminal;
  if (a.json) {
    base::OrderedJson all{{"task", "retrieval"}, {"folder", a.retrieval}, {"queries", f.queries}, {"passages", passages}};
    all.update(base::OrderedJson{{"mrr_10", f.mrr_10},
                                 {"ndcg_10", f.ndcg_10},
                                 {"recall_10", f.recall_10},
                                 {"recall_100", f.recall_100},
                                 {"recall_1000", f.recall_1000},
                                 {"query_seconds", result.query_s},
                                 {"encode_seconds", result.encode_s},
                                 {"search_seconds", result.search_s}});
    terminal.line(base::compact(base::OrderedJson{{"model", encoder.path}, {"results", base::OrderedJson::array({all})}}));
    return;
  }
  terminal.line(fmt::format("{:<16} {:>10}", "figure", "value"));
  for (const auto& [name, value] : figures) terminal.line(fmt::format("{:<16} {:>10.4f}", name, value));
  terminal.line("");
  terminal.line(
      base::printable(fmt::format("{} with judgements, {}; encoded in {}, all queries searched in {}",
                                  f.queries == 1 ? "1 query" : fmt::format("{} queries", f.queries), base::plural(passages, "passage"),
                                  base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(result.encode_s * 1e9))),
                                  base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(result.search_s * 1e9))))));
}

}  // namespace

int eval_retrieval(const EvalArguments& a) {
  if (!a.data.empty() || !a.tasks.empty()) base::fail_input("--retrieval {}: is measured alone. Leave --data and --task out.", a.retrieval);
  const std::shared_ptr<base::Terminal> stderr_shown = stderr_terminal();
  base::Log log({.level = base::Level::warn, .terminal = stderr_shown, .file = {}});
  at::set_num_threads(threads_among(1));
  const data::TextTable queries = data::read_queries(a.retrieval), collection = data::read_collection(a.retrieval);
  if (!data::has_judgements(a.retrieval))
    base::fail_input("{}/qrels.tsv: not there. It says which passages answer a query: lines \"qid 0 pid grade\".", a.retrieval);
  std::vector<std::vector<data::Judgement>> judged = data::read_judgements(a.retrieval, queries, collection);
  if (a.limit > 0) {
    int64_t left = a.limit;
    for (auto& one : judged)
      if (!one.empty() && left-- <= 0) one.clear();
  }
  if (std::ranges::all_of(judged, [](const auto& one) { return one.empty(); }))
    base::fail_input("{}/qrels.tsv: no query has a relevant passage", a.retrieval);
  train::OpenedEncoder encoder = train::open_encoder(a.folder, "dir", 1, kernels::device_from_name(a.on.device), log);
  if (!encoder.tokenizer) base::fail_input("{}: it has no tokenizer. Put its tokenizer.json there.", encoder.path);
  const data::RetrievalOptions options = options_for(encoder.path, a);
  encoder.prepare_for_length(std::max(options.query_tokens, options.passage_tokens));
  const int threads = processors();
  const bool ends = data::ends_texts(options.pooling);
  const data::TokenTable asked = data::tokenize_texts(queries, *encoder.tokenizer, options.query_tokens, ends, threads);
  const data::TokenTable passages = data::tokenize_texts(collection, *encoder.tokenizer, options.passage_tokens, ends, threads);
  std::unique_ptr<base::FileWriter> items = a.items_file.empty() ? nullptr : std::make_unique<base::FileWriter>(a.items_file);
  const auto keep = [&](int64_t query, std::span<const data::Match> results) {
    if (!items) return;
    base::OrderedJson line{
        {"task", "retrieval"}, {"query", queries.ids[static_cast<size_t>(query)]}, {"passages", base::OrderedJson::array()}};
    for (const data::Match& one : results.first(std::min(results.size(), kResultsKept)))
      line["passages"].push_back({{"id", collection.ids[static_cast<size_t>(one.id)]}, {"score", one.score}});
    items->write(base::compact(line) + "\n");
  };
  const base::RealClock clock;
  base::Progress shown(*stderr_shown, clock, std::chrono::seconds(5));
  const auto progress = [&](int64_t done, int64_t of) {
    if (done >= of) return stderr_shown->end_live();
    if (shown.due()) shown.update(fmt::format("encoding: {} of {} passages", done, of));
  };
  const evaluate::RetrievalResult result = evaluate::evaluate_retrieval(
      encoder.texts(), asked, passages, judged, {.pooling = options.pooling, .batch = std::max<int64_t>(a.batch, 1)}, keep, progress);
  if (items) items->commit();
  show(a, encoder, result, passages.size());
  return 0;
}

}  // namespace cairn::cli
