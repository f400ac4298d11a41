#include "data/retrieval/texts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "data/corpus/file_reader.h"

namespace cairn::data {
namespace {

namespace fs = std::filesystem;

constexpr base::JsonLimits kTextLineLimits{.depth = 8};
constexpr size_t kLineBytesMax = 4 << 20, kPieceBytes = 1 << 20;
constexpr size_t kUnknownShown = 5;

std::string place(const fs::path& file, int64_t line) { return fmt::format("{}:{}", file.string(), line); }

// Calls `take` with every line that is not empty, and its number. Reads in pieces: a line that never ends is refused before it is in
// memory.
void for_each_line(const fs::path& file, const std::function<void(std::string_view line, int64_t number)>& take) {
  FileReader reader(file.string());
  std::string piece(kPieceBytes, '\0'), line;
  int64_t number = 1;
  const auto end_line = [&] {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) take(line, number);
    line.clear();
    ++number;
  };
  while (const size_t bytes = reader.read(piece.data(), piece.size())) {
    const std::string_view all(piece.data(), bytes);
    for (size_t at = 0; at < all.size();) {
      const size_t end = std::min(all.find('\n', at), all.size());
      line.append(all.substr(at, end - at));
      if (line.size() > kLineBytesMax)
        base::fail_input("{}: a line of more than {} bytes. Cut the text.", place(file, number), kLineBytesMax);
      if (end < all.size()) end_line();
      at = end + 1;
    }
  }
  if (!line.empty()) end_line();
}

std::vector<std::string_view> split(std::string_view line, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = line.find_first_not_of(separators, at);
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(line.find_first_of(separators, begin), line.size());
    parts.push_back(line.substr(begin, end - begin));
    at = end;
  }
  return parts;
}

bool parse_finite(std::string_view text, double& into) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(into);
}

std::string text_of_json(const base::Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) base::fail_input("{}: no text \"{}\"", where, key);
  return found->get<std::string>();
}

std::string id_of_json(const base::Json& object, const std::string& where) {
  for (const char* key : {"_id", "id"}) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_number_integer()) return std::to_string(found->get<int64_t>());
  }
  base::fail_input("{}: neither \"_id\" nor \"id\"", where);
}

void add_text(TextTable& table, std::string id, std::string text, const std::string& where) {
  if (id.empty() || id.find_first_of(" \t,") != std::string::npos)
    base::fail_input("{}: \"{}\" is no id: it is empty or has spaces, tabs or commas", where, id);
  if (!table.numbers.emplace(id, table.size()).second) base::fail_input("{}: id {} comes twice", where, id);
  table.ids.push_back(std::move(id));
  table.texts.push_back(std::move(text));
}

TextTable read_tsv(const fs::path& file) {
  TextTable table{.path = file.string(), .ids = {}, .texts = {}, .numbers = {}};
  for_each_line(file, [&](std::string_view line, int64_t number) {
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos) base::fail_input("{}: no tab between id and text", place(file, number));
    add_text(table, std::string(line.substr(0, tab)), std::string(line.substr(tab + 1)), place(file, number));
  });
  return table;
}

TextTable read_jsonl(const fs::path& file) {
  TextTable table{.path = file.string(), .ids = {}, .texts = {}, .numbers = {}};
  for_each_line(file, [&](std::string_view line, int64_t number) {
    const std::string where = place(file, number);
    const base::GuardedJson parsed = base::parse_json_guarded(line, kTextLineLimits);
    if (!parsed.trouble.empty()) base::fail_input("{}: {}", where, parsed.trouble);
    if (!parsed.value.is_object()) base::fail_input("{}: not an object with \"id\" and \"text\"", where);
    std::string text = text_of_json(parsed.value, "text", where);
    if (const auto title = parsed.value.find("title");
        title != parsed.value.end() && title->is_string() && !title->get<std::string>().empty())
      text = title->get<std::string>() + " " + text;
    add_text(table, id_of_json(parsed.value, where), std::move(text), where);
  });
  return table;
}

TextTable read_texts(const fs::path& folder, std::initializer_list<const char*> names) {
  std::vector<std::string> tried;
  for (const char* name : names)
    for (const char* ending : {".tsv", ".jsonl"}) {
      const fs::path file = folder / (std::string(name) + ending);
      tried.push_back(file.filename().string());
      if (!base::path_exists(file)) continue;
      TextTable table = file.extension() == ".tsv" ? read_tsv(file) : read_jsonl(file);
      if (table.size() == 0) base::fail_input("{}: no text in it", file.string());
      return table;
    }
  base::fail_input("{}: none of {} is there. Give a folder with queries, passages and pairs (docs/guides/retrieval.md).", folder.string(),
                   fmt::join(tried, ", "));
}

// Ids that are not known, gathered over a file, so that all of them are reported at once.
class UnknownIds {
 public:
  UnknownIds(const fs::path& file, const TextTable& queries, const TextTable& collection)
      : file_(file), queries_(queries), collection_(collection) {}

  int64_t query(std::string_view id, int64_t line) { return find(queries_, id, line, "query"); }
  int64_t passage(std::string_view id, int64_t line) { return find(collection_, id, line, "passage"); }
  void refuse() const {
    if (count_ == 0) return;
    base::fail_input("{}: {} ids are unknown, first {}. Take out these lines, or add the texts to {} and {}.", file_.string(), count_,
                     fmt::join(first_, ", "), queries_.path, collection_.path);
  }

 private:
  int64_t find(const TextTable& table, std::string_view id, int64_t line, const char* what) {
    const auto found = table.numbers.find(std::string(id));
    if (found != table.numbers.end()) return found->second;
    ++count_;
    if (first_.size() < kUnknownShown) first_.push_back(fmt::format("{} {} (line {})", what, id, line));
    return -1;
  }
  const fs::path& file_;
  const TextTable &queries_, &collection_;
  int64_t count_ = 0;
  std::vector<std::string> first_;
};

}  // namespace

TextTable read_queries(const fs::path& folder) { return read_texts(folder, {"queries"}); }
TextTable read_collection(const fs::path& folder) { return read_texts(folder, {"collection", "corpus"}); }

std::vector<TextPair> read_pairs(const fs::path& folder, const TextTable& queries, const TextTable& collection) {
  const fs::path file = folder / "pairs.tsv";
  UnknownIds ids(file, queries, collection);
  std::vector<TextPair> pairs;
  for_each_line(file, [&](std::string_view line, int64_t number) {
    const std::vector<std::string_view> fields = split(line, "\t ");
    TextPair pair;
    if (fields.size() != 5 || !parse_finite(fields[0], pair.right_score) || !parse_finite(fields[1], pair.wrong_score))
      base::fail_input("{}: not \"pos_score neg_score qid pos_id neg_id\"", place(file, number));
    pair.query = ids.query(fields[2], number), pair.right = ids.passage(fields[3], number), pair.wrong = ids.passage(fields[4], number);
    if (pair.right >= 0 && pair.right == pair.wrong)
      base::fail_input("{}: passage {} is right and wrong at once", place(file, number), fields[3]);
    pairs.push_back(pair);
  });
  ids.refuse();
  if (pairs.empty()) base::fail_input("{}: no pair in it", file.string());
  return pairs;
}

bool has_judgements(const fs::path& folder) { return base::path_exists(folder / "qrels.tsv"); }

std::vector<std::vector<Judgement>> read_judgements(const fs::path& folder, const TextTable& queries, const TextTable& collection) {
  const fs::path file = folder / "qrels.tsv";
  UnknownIds ids(file, queries, collection);
  std::vector<std::vector<Judgement>> judged(static_cast<size_t>(queries.size()));
  for_each_line(file, [&](std::string_view line, int64_t number) {
    const std::vector<std::string_view> fields = split(line, "\t ");
    double grade = 0;
    if (fields.size() < 3 || fields.size() > 4 || !parse_finite(fields.back(), grade)) {
      if (number == 1) return;  // names of columns
      base::fail_input("{}: neither \"qid 0 pid grade\" nor \"qid pid grade\"", place(file, number));
    }
    const int64_t query = ids.query(fields[0], number), passage = ids.passage(fields[fields.size() - 2], number);
    if (query < 0 || passage < 0 || grade <= 0) return;
    std::vector<Judgement>& all = judged[static_cast<size_t>(query)];
    const auto same = std::ranges::find(all, passage, &Judgement::passage);
    same == all.end() ? (void)all.push_back({passage, grade}) : (void)(same->grade = std::max(same->grade, grade));
  });
  ids.refuse();
  for (std::vector<Judgement>& all : judged) std::ranges::sort(all, {}, &Judgement::passage);
  return judged;
}

std::span<const int32_t> TokenTable::operator[](int64_t text) const {
  const int64_t begin = text == 0 ? 0 : ends_[static_cast<size_t>(text - 1)];
  return std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(ends_[static_cast<size_t>(text)] - begin));
}

uint64_t TokenTable::digest() const {
  base::Checksum sum;
  sum.add(std::as_bytes(std::span(tokens_)));
  sum.add(std::as_bytes(std::span(ends_)));
  return sum.value();
}

TokenTable tokenize_texts(const TextTable& texts, const Tokenizer& tokenizer, int64_t tokens_max, bool ends, int threads) {
  const std::optional<int32_t> end = ends ? tokenizer.find_end_of_text() : std::nullopt;
  const std::vector<int32_t> begin = tokenizer.begin_ids();
  const auto parts = static_cast<size_t>(std::max(1, threads));
  std::vector<std::vector<int32_t>> tokens(parts);
  std::vector<std::vector<int64_t>> counts(parts);
  std::vector<std::exception_ptr> failures(parts);
  const auto encode = [&](size_t part) {
    const size_t n = texts.texts.size();
    std::vector<int32_t> ids;
    for (size_t i = n * part / parts; i < n * (part + 1) / parts; ++i) {
      ids = begin;
      tokenizer.encode(texts.texts[i], {}, ids);
      ids.resize(std::min(ids.size(), static_cast<size_t>(tokens_max - (end ? 1 : 0))));
      if (end) ids.push_back(*end);
      if (ids.empty()) ids.push_back(tokenizer.find_end_of_text().value_or(0));
      tokens[part].insert(tokens[part].end(), ids.begin(), ids.end());
      counts[part].push_back(static_cast<int64_t>(ids.size()));
    }
  };
  const auto work = [&](size_t part) {
    try {
      encode(part);
    } catch (...) {
      failures[part] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> workers;
    for (size_t part = 1; part < parts; ++part) workers.emplace_back(work, part);
    work(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  TokenTable table;
  for (size_t part = 0; part < parts; ++part) {
    table.tokens_.insert(table.tokens_.end(), tokens[part].begin(), tokens[part].end());
    for (const int64_t count : counts[part]) table.ends_.push_back((table.ends_.empty() ? 0 : table.ends_.back()) + count);
  }
  return table;
}

std::vector<std::vector<int64_t>> read_clusters(const fs::path& file, const TextTable& queries) {
  std::vector<std::vector<int64_t>> clusters;
  std::vector<bool> seen(static_cast<size_t>(queries.size()));
  std::vector<std::string> unknown;
  int64_t unknowns = 0;
  for_each_line(file, [&](std::string_view line, int64_t number) {
    std::vector<int64_t>& cluster = clusters.emplace_back();
    for (const std::string_view id : split(line, "\t ,")) {
      const auto found = queries.numbers.find(std::string(id));
      if (found == queries.numbers.end()) {
        if (unknowns++ < static_cast<int64_t>(kUnknownShown)) unknown.emplace_back(id);
        continue;
      }
      if (seen[static_cast<size_t>(found->second)])
        base::fail_input("{}: query {} comes twice. Each query is in one cluster.", place(file, number), id);
      seen[static_cast<size_t>(found->second)] = true;
      cluster.push_back(found->second);
    }
  });
  if (unknowns > 0)
    base::fail_input("sampler.clusters = {}: {} query ids are not in {}, first {}. Make the clusters from these queries.", file.string(),
                     unknowns, queries.path, fmt::join(unknown, ", "));
  if (clusters.empty()) base::fail_input("sampler.clusters = {}: no cluster in it", file.string());
  return clusters;
}

std::string format_clusters(const std::vector<int64_t>& queries, std::span<const int32_t> labels, const TextTable& table) {
  CAIRN_CHECK(queries.size() == labels.size(), "{} queries with {} labels", queries.size(), labels.size());
  std::vector<std::string> lines;
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto cluster = static_cast<size_t>(labels[i]);
    if (lines.size() <= cluster) lines.resize(cluster + 1);
    lines[cluster] += (lines[cluster].empty() ? "" : "\t") + table.ids[static_cast<size_t>(queries[i])];
  }
  std::string text;
  for (const std::string& line : lines)
    if (!line.empty()) text += line + "\n";
  return text;
}

}  // namespace cairn::data
