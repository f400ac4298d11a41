#include "base/metrics.h"

#include <cmath>
#include <limits>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "base/files/faulty_disk.h"
#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

MetricsRow row(int64_t step) { return {{{"step", step}, {"loss", 0.5}}}; }

TEST(Metrics, WritesOneObjectALineInOrder) {
  const harness::ScratchFolder folder;
  Metrics metrics(folder / "metrics.jsonl");
  metrics.write({{{"step", int64_t{1}}, {"loss", 0.1}, {"note", std::string("a \"b\"\n")}, {"lr", 1.0}}});
  EXPECT_EQ(folder.text_of("metrics.jsonl"),
            "{\"step\":1,\"loss\":0.1,\"note\":\"a \\\"b\\\"\\n\",\"lr\":1.0}\n");  // there already, unclosed
}

TEST(Metrics, ReadsBackEveryNumberExactly) {
  const harness::ScratchFolder folder;
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, inf, -inf, 1e22, 123456789.123456789};
  MetricsRow written{{{"step", INT64_MAX}, {"low", INT64_MIN}}};
  for (size_t i = 0; i < numbers.size(); ++i) written.values.emplace_back("x" + std::to_string(i), numbers[i]);
  written.values.emplace_back("text", std::string("h\xc3\xa9"));
  Metrics(folder / "m").write(written);
  const std::vector<MetricsRow> rows = read_metrics(folder / "m");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0], written);
  EXPECT_TRUE(std::signbit(rows[0].number("x4")));
}

TEST(Metrics, KeepsNotANumber) {
  const harness::ScratchFolder folder;
  Metrics(folder / "m").write({{{"loss", std::nan("")}}});
  EXPECT_TRUE(std::isnan(read_metrics(folder / "m")[0].number("loss")));
}

TEST(Metrics, AppendsAndDropsWhatACrashTore) {
  const harness::ScratchFolder folder;
  folder.file("m", "{\"step\":1}\n{\"step\":2,\"lo");
  Metrics(folder / "m").write(row(2));
  EXPECT_EQ(folder.text_of("m"), "{\"step\":1}\n{\"step\":2,\"loss\":0.5}\n");
}

TEST(Metrics, KeepsARowWhoseEvaluationNeverEnded) {
  const harness::ScratchFolder folder;
  {
    Metrics metrics(folder / "m");
    metrics.write(row(1));
    metrics.write_before_evaluation(row(2));
    EXPECT_EQ(folder.text_of("m"), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.5,\"eval_loss\":");  // on disk before it ends
  }
  const std::vector<MetricsRow> rows = read_metrics(folder / "m");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1], row(2));
  Metrics(folder / "m").write(row(3));  // the next start of the run
  EXPECT_EQ(folder.text_of("m"), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"loss\":0.5}\n");
}

TEST(Metrics, CompletesARowWithItsEvaluation) {
  const harness::ScratchFolder folder;
  Metrics metrics(folder / "m");
  metrics.write_before_evaluation(row(1));
  metrics.evaluated({{{"eval_loss", 0.25}, {"eval_accuracy", 1.0}}});
  metrics.write(row(2));
  EXPECT_EQ(folder.text_of("m"), "{\"step\":1,\"loss\":0.5,\"eval_loss\":0.25,\"eval_accuracy\":1.0}\n{\"step\":2,\"loss\":0.5}\n");
}

TEST(Metrics, CompletesARowWhoseFolderWasDeletedDuringItsEvaluation) {
  const harness::ScratchFolder folder;
  for (const bool disk_fills : {false, true}) {
    std::filesystem::create_directory(folder / "run");
    FaultyDisk disk(disk_fills ? DiskFaults{.full_after_bytes = 70} : DiskFaults{});
    Metrics metrics(folder / "run/m", disk);
    metrics.write(row(1));
    metrics.write_before_evaluation(row(2));
    if (disk_fills) metrics.evaluated({{{"eval_loss", 0.123456789}, {"eval_accuracy", 0.123456789}}});  // torn
    std::filesystem::remove_all(folder / "run");
    disk.recover();
    if (!disk_fills) metrics.evaluated({{{"eval_loss", 0.123456789}, {"eval_accuracy", 0.123456789}}});
    metrics.write(row(3));
    const std::string evaluated = "{\"step\":2,\"loss\":0.5,\"eval_loss\":0.123456789,\"eval_accuracy\":0.123456789}\n";
    EXPECT_EQ(folder.text_of("run/m"), evaluated + "{\"step\":3,\"loss\":0.5}\n") << disk_fills;
    EXPECT_EQ(disk.fired() > 0, disk_fills);
    std::filesystem::remove_all(folder / "run");
  }
}

// Lists with numbers that are not finite were read back as text.
TEST(Metrics, KeepsNumbersOfListsThatAreNotFinite) {
  const harness::ScratchFolder folder;
  const double inf = std::numeric_limits<double>::infinity();
  Metrics(folder / "m").write({{{"norms", std::vector<double>{0.5, std::nan(""), inf, -inf}}}});
  const std::vector<MetricsRow> rows = read_metrics(folder / "m");
  const auto* norms = std::get_if<std::vector<double>>(&rows.at(0).values.at(0).second);
  ASSERT_NE(norms, nullptr);
  ASSERT_EQ(norms->size(), 4u);
  EXPECT_EQ((*norms)[0], 0.5);
  EXPECT_TRUE(std::isnan((*norms)[1]));
  EXPECT_EQ((*norms)[2], inf);
  EXPECT_EQ((*norms)[3], -inf);
}

TEST(Metrics, KeepsListsOfNumbers) {
  const harness::ScratchFolder folder;
  const MetricsRow written{{{"rank_seconds", std::vector<double>{0.1, 2, 1.0 / 3}}}};
  Metrics(folder / "m").write(written);
  EXPECT_EQ(read_metrics(folder / "m").at(0), written);
}

TEST(Metrics, WritesBytesThatAreNoTextAsReplacement) {
  const harness::ScratchFolder folder;
  Metrics(folder / "m").write({{{"note", std::string("\xff")}}});
  EXPECT_EQ(folder.text_of("m"), "{\"note\":\"\xef\xbf\xbd\"}\n");
}

TEST(ReadMetrics, RefusesDamageWithItsLine) {
  const harness::ScratchFolder folder;
  const auto path = folder.file("m", "{\"step\":1}\nrubbish\n{\"step\":2}\n");
  const Error error = error_of([&] { read_metrics(path); });
  EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
  EXPECT_EQ(error.what(), path.string() + ":2: not a JSON object");
  EXPECT_EQ(message_of([&] { read_metrics(folder / "none"); }),
            "cannot open " + (folder / "none").string() + ": No such file or directory");
  EXPECT_TRUE(read_metrics(folder.file("empty", "")).empty());
}

TEST(ReadMetrics, RefusesALineWithoutEndAndWhatIsNoFile) {
  const harness::ScratchFolder scratch;
  scratch.file("long.jsonl", "{\"step\": 1}\n" + std::string((1 << 20) + 10, ' '));
  EXPECT_NE(
      std::string(error_of([&] { read_metrics(scratch / "long.jsonl"); }).what()).find("long.jsonl:2: a line of more than 1048576 bytes"),
      std::string::npos);
  scratch.file("deep.jsonl", std::string(100'000, '[') + "\n{}\n");
  EXPECT_NE(std::string(error_of([&] { read_metrics(scratch / "deep.jsonl"); }).what()).find("deep.jsonl:1"), std::string::npos);
  ASSERT_EQ(::mkfifo((scratch / "pipe.jsonl").c_str(), 0600), 0);
  EXPECT_NE(std::string(error_of([&] { read_metrics(scratch / "pipe.jsonl"); }).what()).find("not a regular file"), std::string::npos);
}

TEST(ReadMetrics, NamesWhatARowLacks) {
  EXPECT_EQ(message_of([] { (void)row(1).number("los"); }), "a metrics row has no \"los\"");
  EXPECT_EQ(message_of([] { (void)row(1).integer("loss"); }), "\"loss\" of a metrics row is not an integer");
  EXPECT_EQ(row(4).integer("step"), 4);
  EXPECT_EQ(row(4).number("step"), 4.0);
  EXPECT_FALSE(row(4).has("lr"));
}

TEST(TruncateMetrics, KeepsStepsUpToTheLastAndRowsWithoutOne) {
  const harness::ScratchFolder folder;
  const auto path =
      folder.file("m", "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2, \"loss\": 1.50}\n{\"step\":3}\n{\"step\":2,\"eval\":1}\n{\"ste");
  truncate_metrics(path, 2);
  EXPECT_EQ(folder.text_of("m"),
            "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2, \"loss\": 1.50}\n{\"step\":2,\"eval\":1}\n");  // bytes untouched
  truncate_metrics(path, -1);
  EXPECT_EQ(folder.text_of("m"), "{\"event\":\"start\"}\n");
}

TEST(TruncateMetrics, KeepsAWholeLastLineWithoutNewline) {
  const harness::ScratchFolder folder;
  const auto path = folder.file("m", "{\"step\":1}\n{\"step\":2}");
  truncate_metrics(path, 2);
  EXPECT_EQ(folder.text_of("m"), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(TruncateMetrics, DoesNothingWithoutAFileAndHarmsNoneOnAFault) {
  const harness::ScratchFolder folder;
  EXPECT_NO_THROW(truncate_metrics(folder / "none", 5));
  const auto path = folder.file("m", "{\"step\":1}\n{\"step\":2}\n");
  const FaultyDisk disk({.full_after_bytes = 3});
  EXPECT_EQ(error_of([&] { truncate_metrics(path, 1, disk); }).kind(), Error::Kind::disk);
  EXPECT_EQ(folder.text_of("m"), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(folder.names().size(), 1u);
}

}  // namespace
}  // namespace cairn::base
