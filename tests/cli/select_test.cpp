// `cairn select`, as a user runs it.
#include <numeric>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/selection/framed_file.h"
#include "data/selection/subset_file.h"
#include "program.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

std::string record(int number) {
  std::ostringstream line;
  line << R"({"instruction": "Say )" << number << R"(", "output": ")"
       << std::string(static_cast<size_t>(number % 23 + 1), static_cast<char>('a' + number % 7)) << R"(", "kind": ")"
       << (number % 4 == 0 ? "rare" : "usual") << "\"}\n";
  return line.str();
}

// A pool of two files and a small model.
class Select : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared = new harness::ScratchFolder;
    std::string a, b, queries;
    for (int i = 0; i < 120; ++i) a += record(i);
    for (int i = 120; i < 200; ++i) b += record(i);
    for (int i = 500; i < 505; ++i) queries += record(i);
    shared->file("a.jsonl", a);
    shared->file("b.jsonl", b);
    shared->file("queries.jsonl", queries);
    const Outcome trained = cairn(*shared, {"train",
                                            "--data",
                                            "a.jsonl",
                                            "--out",
                                            "base",
                                            "--set",
                                            "model.layers=2",
                                            "--set",
                                            "model.embed=16",
                                            "--set",
                                            "model.heads=2",
                                            "--set",
                                            "model.kv_heads=2",
                                            "--set",
                                            "model.mlp=16",
                                            "--set",
                                            "data.tokenizer=bytes",
                                            "--set",
                                            "data.template=plain",
                                            "--set",
                                            "data.length=96",
                                            "--set",
                                            "data.packing=documents",
                                            "--set",
                                            "train.global_batch=4",
                                            "--set",
                                            "train.steps=3",
                                            "--set",
                                            "log.samples=0"});
    ASSERT_EQ(trained.code, 0) << trained.output;
  }
  static void TearDownTestSuite() { delete shared; }

  Outcome select(std::vector<std::string> arguments) const {
    std::vector<std::string> all{"select"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.insert(all.end(), {"--data", "a.jsonl", "--data", "b.jsonl", "--set", "data.template=plain"});
    return cairn(*shared, all);
  }
  data::DocumentSubset kept(const std::string& file) const { return data::read_subset(*shared / file); }

  static harness::ScratchFolder* shared;
};
harness::ScratchFolder* Select::shared = nullptr;

TEST_F(Select, KeepsAsManyAsAskedByEveryMethod) {
  const std::vector<std::vector<std::string>> methods{
      {"random"},
      {"balanced"},
      {"balanced", "--label", "kind"},
      {"dedup", "--model", "base"},
      {"concept", "--model", "base", "--clusters", "8", "--neighbours", "4"},
      {"kmq", "--model", "base", "--clusters", "8", "--by", "perplexity"},
      {"rds", "--model", "base", "--queries", "t=queries.jsonl"},
      {"rds", "--model", "base", "--queries", "t=queries.jsonl", "--within-task", "max", "--pooling", "mean", "--text", "prompt"},
      {"top", "--model", "base", "--by", "perplexity", "--order", "middle"},
      {"top", "--model", "base", "--by", "ifd"}};
  for (std::vector<std::string> method : methods) {
    method.insert(method.end(), {"--keep", "0.2", "--out", "kept", "--report", "report"});
    const Outcome outcome = select(method);
    ASSERT_EQ(outcome.code, 0) << method[0] << ": " << outcome.output;
    EXPECT_EQ(kept("kept").ids.size(), 40u) << method[0];
    EXPECT_EQ(kept("kept").method, method[0]);
    EXPECT_THAT(shared->text_of("report/report.html"), testing::AllOf(HasSubstr("<svg"), HasSubstr("Say "))) << method[0];
  }
}

// Weights are scores, so the hash has all bits of them. A score that is kept would hide that ranks computed another one.
TEST_F(Select, GivesTheSameHashOnAnyRanks) {
  for (std::vector<std::string> method : {std::vector<std::string>{"dedup"},
                                          {"concept", "--clusters", "8"},
                                          {"kmq", "--clusters", "8"},
                                          {"kmq", "--clusters", "8", "--by", "ifd"},
                                          {"rds", "--queries", "t=queries.jsonl"},
                                          {"top", "--by", "perplexity", "--weights", "perplexity"},
                                          {"top", "--by", "ifd", "--weights", "ifd"}}) {
    method.insert(method.end(), {"--model", "base", "--keep", "50"});
    std::set<uint64_t> hashes;
    for (const std::string ranks : {"1", "2", "4"}) {
      std::filesystem::remove_all(*shared / "cache" / "columns");
      std::vector<std::string> all = method;
      all.insert(all.end(), {"--nproc", ranks, "--out", "of" + ranks, "--index", "index-of-" + ranks});
      const Outcome outcome = select(all);
      ASSERT_EQ(outcome.code, 0) << outcome.output;
      hashes.insert(kept("of" + ranks).hash());
    }
    EXPECT_EQ(hashes.size(), 1u) << method[0] << " " << method[2];
  }
}

TEST_F(Select, FindsKeptScoresOnEveryRank) {
  const std::vector<std::string> top{"top",  "--by",   "perplexity", "--weights", "perplexity", "--model",
                                     "base", "--keep", "50",         "--nproc",   "2"};
  std::filesystem::remove_all(*shared / "cache" / "columns");
  std::set<uint64_t> hashes;
  for (const std::string run : {"computed", "found"}) {
    std::vector<std::string> all = top;
    all.insert(all.end(), {"--out", run});
    const Outcome outcome = select(all);
    ASSERT_EQ(outcome.code, 0) << run << outcome.output;
    hashes.insert(kept(run).hash());
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST_F(Select, RefusesDocumentsWithoutAScoreOnAllRanks) {
  std::string texts;
  for (int i = 0; i < 150; ++i) texts += R"({"text": "story )" + std::to_string(i) + "\"}\n";
  shared->file("texts.jsonl", texts);
  const Outcome outcome = cairn(
      *shared, {"select", "top", "--data", "texts.jsonl", "--by", "ifd", "--model", "base", "--keep", "5", "--out", "x", "--nproc", "2"});
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("documents 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 140 more: they have no prompt"));
}

TEST_F(Select, MakesTheSameVectorsAlongEveryAxis) {
  for (const std::string mesh : {"dp=2", "tp=2", "pp=2", "cp=2"}) {
    const Outcome outcome = select({"rds", "--model", "base", "--queries", "t=queries.jsonl", "--keep", "50", "--out", "meshed", "--mesh",
                                    mesh, "--index", "index-" + mesh});
    ASSERT_EQ(outcome.code, 0) << mesh << outcome.output;
    ASSERT_EQ(select({"rds", "--model", "base", "--queries", "t=queries.jsonl", "--keep", "50", "--out", "alone"}).code, 0);
    std::vector<int64_t> common;
    const std::vector<int64_t> a = kept("meshed").ids, b = kept("alone").ids;
    std::ranges::set_intersection(a, b, std::back_inserter(common));
    EXPECT_GE(common.size(), 48u) << mesh;  // rounding may swap near-ties
  }
}

TEST_F(Select, TrainsOnASubsetAsOnItsExport) {
  ASSERT_EQ(select({"random", "--keep", "60", "--out", "kept", "--export", "kept.jsonl"}).code, 0);
  using Sets = std::vector<std::string>;
  const auto losses = [&](const std::string& out, const Sets& layout, const Sets& data) {
    Sets all{"train", "--out", out};
    for (const char* set : {"model.from=base", "data.template=plain", "data.length=64", "train.steps=6", "train.global_batch=8",
                            "eval.fraction=0", "log.samples=0"})
      all.insert(all.end(), {"--set", set});
    for (const Sets* more : {&layout, &data}) all.insert(all.end(), more->begin(), more->end());
    const Outcome outcome = cairn(*shared, all);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return losses_in(*shared / out);
  };
  const auto packed = [](const std::string& packing) { return Sets{"--set", "data.packing=" + packing}; };
  const Sets two_ranks{"--set", "data.packing=documents", "--mesh", "dp=2"};
  Sets planned = packed("sequences");
  planned.insert(planned.end(), {"--set", "context.plan=bytescale", "--set", "context.tokens_per_rank=300"});
  int run = 0;
  for (const Sets& layout : {packed("stream"), packed("separate"), packed("documents"), packed("none"), planned, two_ranks}) {
    const std::string name = std::to_string(run++);
    const std::vector<double> on_subset =
        losses("on-subset-" + name, layout, {"--set", "data.sources=[\"a.jsonl\",\"b.jsonl\"]", "--set", "data.subset=kept"});
    EXPECT_EQ(on_subset.size(), 6u) << layout[1];
    EXPECT_EQ(on_subset, losses("on-export-" + name, layout, {"--data", "kept.jsonl"})) << layout[1] << layout[2];
  }
}

TEST_F(Select, ChainsAndFindsFinishedStages) {
  ASSERT_EQ(select({"dedup", "--model", "base", "--keep", "150", "--out", "first"}).code, 0);
  ASSERT_EQ(select({"rds", "--model", "base", "--from", "first", "--queries", "t=queries.jsonl", "--keep", "30", "--out", "second"}).code,
            0);
  const std::vector<int64_t> first = kept("first").ids, second = kept("second").ids;
  EXPECT_EQ(second.size(), 30u);
  EXPECT_TRUE(std::ranges::includes(first, second));
  const Outcome again = select({"dedup", "--model", "base", "--keep", "150", "--out", "first"});
  EXPECT_THAT(again.output, HasSubstr("this selection is there already"));
  EXPECT_EQ(select({"dedup", "--model", "base", "--keep", "140", "--out", "first"}).output.find("there already"), std::string::npos);
  EXPECT_EQ(kept("first").ids.size(), 140u);
}

TEST_F(Select, TakesColumnsOfScores) {
  std::string numbers;
  for (int i = 0; i < 200; ++i) numbers += std::to_string(i % 50) + "\n";
  shared->file("numbers.txt", numbers);
  ASSERT_EQ(select({"score", "--numbers", "numbers.txt", "--by", "mine", "--out", "mine.col"}).code, 0);
  const Outcome top = select({"top", "--by", "mine", "--column", "mine=mine.col", "--keep", "8", "--weights", "mine", "--out", "kept"});
  ASSERT_EQ(top.code, 0) << top.output;
  EXPECT_THAT(kept("kept").ids, testing::ElementsAre(48, 49, 98, 99, 148, 149, 198, 199));
  EXPECT_THAT(kept("kept").weights, testing::ElementsAre(48, 49, 48, 49, 48, 49, 48, 49));
  const Outcome other =
      cairn(*shared, {"select", "top", "--data", "a.jsonl", "--by", "mine", "--column", "mine=mine.col", "--keep", "8", "--out", "x"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.output, HasSubstr("of other data"));
}

TEST_F(Select, RefusesWhatCannotBe) {
  const auto refused = [&](std::vector<std::string> arguments, const std::string& said) {
    const Outcome outcome = select(std::move(arguments));
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(said));
  };
  refused({"random", "--keep", "201", "--out", "x"}, "--keep 201: there are 200 documents to choose from");
  refused({"random", "--keep", "none", "--out", "x"}, "--keep none: give a number of documents");
  refused({"random", "--out", "x"}, "say how many documents to keep");
  refused({"rds", "--keep", "5", "--out", "x", "--model", "base"}, "needs target examples");
  refused({"dedup", "--keep", "5", "--out", "x"}, "give --model DIR");
  refused({"concept", "--keep", "5", "--out", "x", "--model", "base", "--clusters", "20"}, "Keep more, or use fewer --clusters");
  refused({"kmq", "--keep", "5", "--out", "x", "--model", "base", "--clusters", "201"}, "--clusters 201");
  refused({"top", "--by", "mine", "--keep", "5", "--out", "x"}, "no such column");
  refused({"top", "--by", "ifd", "--weights", "ifd", "--model", "base", "--keep", "5", "--out", "x", "--export", "x.jsonl"},
          "--export x.jsonl: records have no weights");
  shared->file("empty.jsonl", "");
  refused({"rds", "--keep", "5", "--out", "x", "--model", "base", "--queries", "t=empty.jsonl"}, "the file is empty");
}

TEST_F(Select, RefusesVectorsOfAnotherModel) {
  const std::vector<std::string> rds{"rds",   "--model", "base",    "--queries", "t=queries.jsonl", "--keep", "5",
                                     "--out", "x",       "--index", "index"};
  ASSERT_EQ(select(rds).code, 0);
  std::vector<std::string> pooled = rds;
  pooled.insert(pooled.end(), {"--pooling", "mean"});
  const Outcome outcome = select(pooled);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("made with another pooling (weighted_mean, not mean)"));
}

}  // namespace
}  // namespace cairn::cli
