// Bad inputs: queries, passages, pairs, clusters and judgements of dense retrieval.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

using Spoil = std::function<void(const HostileFolder&)>;

void good_set(const HostileFolder& in) {
  in.folder("d");
  in.file("d/queries.tsv", "q1\twhat\nq2\twho\nq3\twhere\n");
  in.file("d/collection.tsv", "p1\tthis\np2\tthat\np3\tthere\n");
  in.file("d/pairs.tsv", "1 0 q1 p1 p2\n2 0 q1 p1 p3\n1 0 q2 p2 p3\n2 0 q2 p2 p1\n1 0 q3 p3 p1\n2 0 q3 p3 p2\n");
  in.file("c.tsv", "q1 q2\nq3\n");
}

std::vector<std::string> training(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"train"};
  for (const char* set : {"data.kind=retrieval", "data.path=d", "data.tokenizer=bytes", "retrieval.in_batch_weight=0", "eval.fraction=0",
                          "train.global_batch=2", "train.steps=1"})
    all.insert(all.end(), {"--set", set});
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), {"--out", "x"});
  return all;
}

HostileCase spoiled(const std::string& name, const Spoil& spoil, std::vector<std::string> said, const std::vector<std::string>& more = {}) {
  return {"retrieval", name, training(more),
          [spoil](const HostileFolder& in) {
            good_set(in);
            spoil(in);
          },
          std::move(said)};
}

HostileCase pairs(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.emplace_back("pairs.tsv");
  return spoiled(
      name, [bytes](const HostileFolder& in) { in.file("d/pairs.tsv", bytes); }, std::move(said));
}

HostileCase clusters(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  return spoiled(name, [bytes](const HostileFolder& in) { in.file("c.tsv", bytes); }, std::move(said),
                 {"--set", "data.sampler=tas", "--set", "sampler.clusters=c.tsv"});
}

const Spoil kNothing = [](const HostileFolder&) {};

}  // namespace

HostileCases hostile_retrieval() {
  return {
      pairs("pairs_empty", "", {"no pair"}),
      pairs("pairs_cut_off", "1 0 q1 p1 p2\n1 0 q1 p", {"pairs.tsv:2"}),
      pairs("pairs_with_four_fields", "1 q1 p1 p2\n", {"pairs.tsv:1"}),
      pairs("pairs_of_unknown_ids", "1 0 q1 p1 p2\n1 0 q9 p8 p7\n", {"3 ids", "query q9"}),
      pairs("pairs_score_nan", "nan 0 q1 p1 p2\n", {"pairs.tsv:1"}),
      pairs("pairs_score_infinite", "1 1e999 q1 p1 p2\n", {"pairs.tsv:1"}),
      pairs("pairs_right_and_wrong_at_once", "1 0 q1 p1 p1\n", {"right and wrong"}),
      pairs("pairs_nul_bytes", std::string("1 0 q1 p1 \0\0\n", 13), {"unknown"}),
      pairs("pairs_a_line_of_ten_megabytes", repeated("1", 10'000'000), {"pairs.tsv:1", "bytes"}),
      spoiled("pairs_missing", [](const HostileFolder& in) { in.remove("d/pairs.tsv"); }, {"pairs.tsv"}),
      spoiled("pairs_a_pipe", [](const HostileFolder& in) { in.remove("d/pairs.tsv"), in.pipe("d/pairs.tsv"); },
              {"pairs.tsv", "not a regular file"}),
      spoiled("pairs_of_a_gigabyte_without_a_line",
              [](const HostileFolder& in) { in.remove("d/pairs.tsv"), in.sparse("d/pairs.tsv", "", int64_t{1} << 30); }, {"pairs.tsv:1"}),
      spoiled("queries_missing", [](const HostileFolder& in) { in.remove("d/queries.tsv"); }, {"queries.tsv"}),
      spoiled("query_without_a_tab", [](const HostileFolder& in) { in.file("d/queries.tsv", "q1 what\n"); }, {"queries.tsv:1", "tab"}),
      spoiled("query_id_twice", [](const HostileFolder& in) { in.file("d/queries.tsv", "q1\ta\nq1\tb\n"); }, {"queries.tsv:2", "twice"}),
      spoiled("query_id_empty", [](const HostileFolder& in) { in.file("d/queries.tsv", "\ta\n"); }, {"queries.tsv:1", "no id"}),
      spoiled("collection_a_folder", [](const HostileFolder& in) { in.remove("d/collection.tsv"), in.folder("d/collection.tsv"); },
              {"collection.tsv"}),
      spoiled("corpus_not_json",
              [](const HostileFolder& in) { in.remove("d/collection.tsv"), in.file("d/corpus.jsonl", "{\"_id\": \"p1\"\n"); },
              {"corpus.jsonl:1", "JSON"}),
      spoiled("corpus_without_text",
              [](const HostileFolder& in) { in.remove("d/collection.tsv"), in.file("d/corpus.jsonl", "{\"_id\": \"p1\"}\n"); },
              {"corpus.jsonl:1", "text"}),
      spoiled("corpus_a_million_deep",
              [](const HostileFolder& in) {
                in.remove("d/collection.tsv"), in.file("d/corpus.jsonl", "{\"_id\": " + repeated("[", 1'000'000));
              },
              {"corpus.jsonl:1", "nested"}),
      clusters("clusters_of_unknown_queries", "q1 q2 z9\n", {"1 query ids", "z9"}),
      clusters("clusters_with_a_query_twice", "q1 q2\nq1\n", {"c.tsv:2", "twice"}),
      clusters("clusters_empty", "", {"no cluster"}),
      clusters("clusters_with_too_few_queries", "q1\n", {"train.global_batch"}),
      spoiled("in_a_pipeline", kNothing, {"mesh.pp = 2", "data.kind = retrieval"}, {"--mesh", "pp=2"}),
      spoiled("with_context_parallelism", kNothing, {"mesh.cp = 2", "data.kind = retrieval"}, {"--mesh", "cp=2"}),
      spoiled("without_a_teacher", kNothing, {"retrieval.in_batch_weight", "teacher"}, {"--set", "retrieval.in_batch_weight=1"}),
      spoiled("teacher_not_there", kNothing, {"nowhere"}, {"--set", "retrieval.in_batch_weight=1", "--set", "retrieval.teacher=nowhere"}),
      {"retrieval",
       "judgements_missing",
       {"eval", "m", "--retrieval", "d"},
       [](const HostileFolder& in) { good_set(in), in.good("model", "m"); },
       {"qrels.tsv"}},
      {"retrieval",
       "judgements_of_unknown_passages",
       {"eval", "m", "--retrieval", "d"},
       [](const HostileFolder& in) { good_set(in), in.good("model", "m"), in.file("d/qrels.tsv", "q1 0 p99 1\n"); },
       {"qrels.tsv", "passage p99"}},
      {"retrieval",
       "settings_of_the_model_damaged",
       {"eval", "m", "--retrieval", "d"},
       [](const HostileFolder& in) {
         good_set(in), in.good("model", "m"), in.file("d/qrels.tsv", "q1 0 p1 1\n"), in.file("m/retrieval.json", "{\"pooling\": 7}");
       },
       {"retrieval.json"}},
  };
}

}  // namespace cairn::study
