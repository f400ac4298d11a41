#include "data/selection/subset_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "data/selection/framed_file.h"
#include "data/subset.h"

namespace cairn::data {
namespace {

constexpr std::string_view kSubsetMagic = "cairnsb1", kColumnMagic = "cairncl1";
constexpr const char *kSubset = "a subset", *kColumn = "a column of scores";

template <typename T>
void append_numbers(std::string& bytes, const std::vector<T>& numbers) {
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

template <typename T>
std::vector<T> numbers_of(std::string_view bytes, size_t at, size_t count) {
  std::vector<T> numbers(count);
  if (count > 0) std::memcpy(numbers.data(), bytes.data() + at, count * sizeof(T));
  return numbers;
}

void check_other_data(const std::string& option, const std::string& path, const char* what, uint64_t made_from, int64_t documents_then,
                      uint64_t source, int64_t documents) {
  if (made_from == source && documents_then == documents) return;
  base::fail_input(
      "{} = {}: {} of other data ({} documents, digest {}) than these ({} documents, digest {}). Make it again from these files with "
      "`cairn "
      "select`.",
      option, path, what, documents_then, hash_text(made_from), documents, hash_text(source));
}

}  // namespace

uint64_t DocumentSubset::hash() const { return Subset::of(ids, weights).hash(); }

void write_subset(const std::string& path, const DocumentSubset& subset) {
  const base::OrderedJson header{{"source", hash_text(subset.source)}, {"documents", subset.documents},
                                 {"count", subset.ids.size()},         {"weighted", !subset.weights.empty()},
                                 {"hash", hash_text(subset.hash())},   {"method", subset.method},
                                 {"input", hash_text(subset.input)},   {"how", subset.how}};
  std::string body;
  append_numbers(body, subset.ids);
  append_numbers(body, subset.weights);
  write_framed(path, kSubsetMagic, header, std::as_bytes(std::span(body)));
}

DocumentSubset read_subset(const std::string& path) {
  const FramedFile file = read_framed(path, kSubsetMagic, kSubset);
  DocumentSubset subset{.source = header_hash(file.header, "source", path),
                        .documents = header_count(file.header, "documents", path),
                        .method = header_text(file.header, "method", path),
                        .input = header_hash(file.header, "input", path)};
  const auto count = static_cast<size_t>(header_count(file.header, "count", path));
  const auto weighted = file.header.find("weighted");
  const bool weights = weighted != file.header.end() && weighted->is_boolean() && weighted->get<bool>();
  const size_t each = sizeof(int64_t) + (weights ? sizeof(float) : 0);
  if (count > file.body.size() / each || file.body.size() != count * each)
    base::fail_input("{}: its header promises {} documents, and it has {} bytes of them. Make it again with `cairn select`.", path, count,
                     file.body.size());
  subset.ids = numbers_of<int64_t>(file.body, 0, count);
  if (weights) subset.weights = numbers_of<float>(file.body, count * sizeof(int64_t), count);
  for (size_t i = 0; i < count; ++i) {
    if (subset.ids[i] < 0 || subset.ids[i] >= subset.documents || (i > 0 && subset.ids[i] <= subset.ids[i - 1]))
      base::fail_input("{}: document {} is not above the one before it and below {}. Make it again with `cairn select`.", path,
                       subset.ids[i], subset.documents);
  }
  if (subset.hash() != header_hash(file.header, "hash", path))  // refuses weights that cannot be
    base::fail_input("{}: its documents are not those that its header names. Make it again with `cairn select`.", path);
  if (const auto how = file.header.find("how"); how != file.header.end()) subset.how = base::parse_ordered_json(base::compact(*how));
  return subset;
}

void check_source(const DocumentSubset& subset, const std::string& option, const std::string& path, uint64_t source, int64_t documents) {
  check_other_data(option, path, kSubset, subset.source, subset.documents, source, documents);
}

void write_column(const std::string& path, const ScoreColumn& column) {
  const base::OrderedJson header{
      {"source", hash_text(column.source)}, {"name", column.name}, {"count", column.scores.size()}, {"input", hash_text(column.input)}};
  write_framed(path, kColumnMagic, header, std::as_bytes(std::span(column.scores)));
}

ScoreColumn read_column(const std::string& path) {
  const FramedFile file = read_framed(path, kColumnMagic, kColumn);
  const auto count = static_cast<size_t>(header_count(file.header, "count", path));
  if (file.body.size() / sizeof(float) != count || file.body.size() % sizeof(float) != 0)
    base::fail_input("{}: its header promises {} scores, and it has {} bytes of them. Make it again with `cairn select`.", path, count,
                     file.body.size());
  ScoreColumn column{.source = header_hash(file.header, "source", path),
                     .name = header_text(file.header, "name", path),
                     .scores = numbers_of<float>(file.body, 0, count),
                     .input = header_hash(file.header, "input", path)};
  for (size_t i = 0; i < count; ++i)
    if (!std::isfinite(column.scores[i]))
      base::fail_input("{}: the score of document {} is {}. Give every document a finite number.", path, i, column.scores[i]);
  return column;
}

void check_source(const ScoreColumn& column, const std::string& option, const std::string& path, uint64_t source, int64_t documents) {
  check_other_data(option, path, kColumn, column.source, static_cast<int64_t>(column.scores.size()), source, documents);
}

}  // namespace cairn::data
