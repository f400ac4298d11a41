#include "data/selection/pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus/data_cache.h"
#include "data/corpus/source_tokens.h"

namespace cairn::data {
namespace {

constexpr uint64_t kDigestVersion = 1;
constexpr int kRecordDepth = 64;

void refuse_other_kinds(const DataOptions& data) {
  if (!data.needs().is_text() || data.needs().retrieval)
    base::fail_input("data.kind = {}: only documents of text can be selected. Leave data.kind out.", data.kind);
}

std::string label_of(const base::Json& record, const std::string& field) {
  if (field.empty() || !record.is_object()) return {};
  const auto found = record.find(field);
  if (found == record.end() || found->is_null()) return {};
  return found->is_string() ? found->get<std::string>() : base::compact(*found);
}

// The documents of chunks one by one, with the text of their records.
class RecordReader {
 public:
  RecordReader(const DataOptions& data, const std::string& label, const std::function<void(const PoolRecord&)>& act)
      : data_(data), label_(label), act_(act) {}

  void read(const Source& source) {
    if (std::ranges::any_of(source.files, [](const SourceFile& file) { return file.holds_tokens(); }))
      base::fail_input("{}: token shards have no records: give the files that they were made from", source.origin);
    const std::unique_ptr<Tokenizer> tokenizer = named_tokenizer(data_);
    how_ = document_options_of(data_, choose_chat_format(data_, tokenizer.get()).renderer);
    const std::unique_ptr<ChunkReader> reader =
        read_source(source, {.line_bytes = data_.line_bytes, .refuse_long = !data_.skips_bad_lines()});
    for (Chunk chunk; reader->next(chunk);) chunk.records ? add_records(chunk) : add_texts(chunk);
  }

 private:
  void add_texts(const Chunk& chunk) {
    for (const Chunk::Piece& piece : chunk.pieces) {
      text_ += chunk[piece];
      if (!piece.ends_document) continue;
      const std::string text = base::valid_utf8(std::exchange(text_, {}));
      act_({.document = documents_++, .json = base::compact(base::OrderedJson{{data_.text_field, text}}), .text = text});
    }
  }

  // documents_of decides which records are documents, so each is asked for by itself.
  void add_records(Chunk& chunk) {
    const std::vector<Chunk::Piece> pieces = std::exchange(chunk.pieces, {});
    std::vector<Document> documents;
    BadLines bad;
    for (const Chunk::Piece& piece : pieces) {
      chunk.pieces = {piece};
      documents.clear();
      documents_of(chunk, how_, documents, bad);
      chunk.bad.clear();
      if (documents.empty()) continue;
      const base::Json record = base::parse_json_guarded(chunk[piece], kRecordDepth).value;
      PoolRecord found{.document = documents_++, .json = base::compact(record), .label = label_of(record, label_)};
      for (const TextSegment& part : documents.front().parts) found.text += part.text;
      act_(found);
    }
  }

  const DataOptions& data_;
  const std::string& label_;
  const std::function<void(const PoolRecord&)>& act_;
  DocumentOptions how_;
  std::string text_;  // of a document whose end was not read yet
  int64_t documents_ = 0;
};

}  // namespace

uint64_t pool_digest(const std::vector<Source>& sources, const DataOptions& data, const DataCache& cache) {
  uint64_t sum = kDigestVersion;
  for (const Source& source : sources) sum = combine({sum, content_hash(source, cache)});
  return combine(
      {sum, base::checksum(data.text_field), data.skips_bad_lines() ? uint64_t{1} : uint64_t{0}, static_cast<uint64_t>(data.line_bytes)});
}

Pool::Pool(Corpus corpus, DataOptions data) : corpus_(std::move(corpus)), data_(std::move(data)), firsts_{0} {
  for (const auto& stream : corpus_.token_streams) firsts_.push_back(firsts_.back() + stream->documents());
  if (documents() == 0) base::fail_input("{}: it holds no document: give files with text in them", corpus_.origin);
}

int64_t Pool::source_of(int64_t document) const {
  CAIRN_CHECK(document >= 0 && document < documents(), "document {} of {}", document, documents());
  return std::upper_bound(firsts_.begin(), firsts_.end(), document) - firsts_.begin() - 1;
}

Pool::Place Pool::place(int64_t document) const {
  const auto source = static_cast<size_t>(source_of(document));
  return {corpus_.token_streams[source].get(), document - firsts_[source]};
}

int64_t Pool::tokens_in(int64_t document) const {
  const Place at = place(document);
  return at.stream->document_begin(at.document + 1) - at.stream->document_begin(at.document);
}

void Pool::read(int64_t document, int64_t count, std::vector<int64_t>& tokens, std::vector<bool>* targets) const {
  const Place at = place(document);
  const int64_t first = at.stream->document_begin(at.document), take = std::min(count, tokens_in(document));
  tokens.resize(static_cast<size_t>(take));
  at.stream->copy(first, take, tokens.data());
  if (!targets) return;
  std::vector<int64_t> marks(tokens.size(), 0);
  at.stream->mask_non_targets(first, take, marks.data());
  targets->resize(tokens.size());
  for (size_t i = 0; i < marks.size(); ++i) (*targets)[i] = marks[i] != kIgnoreIndex;
}

uint64_t Pool::digest_of(int64_t first, int64_t count) const {
  base::Checksum sum;
  std::vector<int64_t> tokens;
  std::vector<bool> targets;
  for (int64_t document = first; document < first + count; ++document) {
    read(document, tokens_in(document), tokens, &targets);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = 2 * tokens[i] + (targets[i] ? 1 : 0);
    tokens.push_back(-1);
    sum.add(std::as_bytes(std::span(tokens)));
  }
  return sum.value();
}

Pool open_pool(const DataOptions& data, CorpusOptions options, base::Log& log) {
  refuse_other_kinds(data);
  options.hash_pool = true;
  return {open_token_streams(data, options, log), data};
}

void for_each_record(const DataOptions& data, const std::string& label, const std::function<void(const PoolRecord&)>& act) {
  refuse_other_kinds(data);
  RecordReader reader(data, label, act);
  for (const Source& source : find_sources(data)) reader.read(source);
}

}  // namespace cairn::data
