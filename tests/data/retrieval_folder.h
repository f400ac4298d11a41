// A small retrieval set in a folder, for tests.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "base/random.h"

namespace cairn::data {

struct SmallRetrieval {
  int queries = 24, topics = 4, pairs_per_query = 3;
  bool clusters = true;
};

// Query i asks for passage i, of topic i % topics; wrong passages are any others. Writes queries.tsv, collection.tsv, pairs.tsv, qrels.tsv
// and clusters.tsv.
inline std::string write_retrieval(const std::filesystem::path& folder, const SmallRetrieval& of = {}) {
  std::filesystem::create_directories(folder);
  const base::Random random = base::Random(5).for_name("retrieval");
  std::ofstream queries(folder / "queries.tsv"), collection(folder / "collection.tsv"), pairs(folder / "pairs.tsv"),
      judged(folder / "qrels.tsv");
  const auto word = [](int topic, int i) { return std::string(1, static_cast<char>('a' + topic)) + std::to_string(i); };
  uint64_t next = 0;
  for (int i = 0; i < of.queries; ++i) {
    queries << fmt::format("q{}\tfind {} {}\n", i, word(i % of.topics, 0), word(i % of.topics, i));
    collection << fmt::format("p{}\tabout {} is {} and more of it{}\n", i, word(i % of.topics, 0), word(i % of.topics, i),
                              i % 5 == 0 ? ", at some length" : "");
    judged << fmt::format("q{} 0 p{} 1\n", i, i);
    for (int k = 0; k < of.pairs_per_query; ++k) {
      const int wrong = static_cast<int>((static_cast<uint64_t>(i) + 1 + random.below(next++, static_cast<uint64_t>(of.queries) - 1)) %
                                         static_cast<uint64_t>(of.queries));
      pairs << fmt::format("{:.3f}\t{:.3f}\tq{}\tp{}\tp{}\n", 3 + random.uniform(next + 100), random.uniform(next + 200), i, i, wrong);
    }
  }
  if (!of.clusters) return folder.string();
  std::ofstream clusters(folder / "clusters.tsv");
  for (int topic = 0; topic < of.topics; ++topic) {
    for (int i = topic; i < of.queries; i += of.topics) clusters << (i == topic ? "" : "\t") << "q" << i;
    clusters << "\n";
  }
  return folder.string();
}

}  // namespace cairn::data
