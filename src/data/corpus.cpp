#include "data/corpus.h"

#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "data/clips/clip_dataset.h"
#include "data/corpus/data_cache.h"
#include "data/corpus/record.h"
#include "data/corpus/source_tokens.h"
#include "data/samples/preference_dataset.h"
#include "data/samples/rollout_dataset.h"
#include "data/samples/token_dataset.h"
#include "data/table/table.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::data {
namespace {

// A BPE is learned from at most this much text, in equal parts from the beginning of each source.
constexpr int64_t kTrainingBytes = 32 << 20;

ChunkOptions chunks_of(const DataOptions& data) { return {.line_bytes = data.line_bytes, .refuse_long = !data.skips_bad_lines()}; }

// The special tokens of a learned tokenizer: end of text and, where the files may hold conversations, the markers of their template.
std::vector<std::string> specials_of(const std::vector<Source>& sources, const Renderer& renderer) {
  std::vector<std::string> specials = {std::string(kEndOfText)};
  const auto holds_records = [](const SourceFile& file) { return file.format == Format::jsonl || file.format == Format::json; };
  if (std::any_of(sources.begin(), sources.end(), [&](const Source& source) { return std::ranges::any_of(source.files, holds_records); }))
    specials.insert(specials.end(), renderer.markers.begin(), renderer.markers.end());
  return specials;
}

// Appends the beginning of a source's documents, piece by piece.
void append_texts(const Source& source, const SourceTokensOptions& how, int64_t bytes_max, std::vector<std::string>& texts) {
  const std::unique_ptr<ChunkReader> reader = read_source(source, how.chunks);
  Chunk chunk;
  std::vector<Document> documents;
  BadLines bad;
  for (int64_t bytes = 0; bytes < bytes_max && reader->next(chunk);) {
    documents.clear();
    documents_of(chunk, how.document_options, documents, bad);
    for (Document& document : documents) {
      for (TextSegment& part : document.parts) {
        if (bytes >= bytes_max) return;
        part.text.resize(std::min(part.text.size(), static_cast<size_t>(bytes_max - bytes)));
        bytes += static_cast<int64_t>(part.text.size());
        texts.push_back(std::move(part.text));
      }
    }
  }
}

// The text between special tokens: merges are learned from it only.
std::vector<std::string_view> without_specials(const std::vector<std::string>& texts, const std::vector<std::string>& specials) {
  std::vector<AddedToken> tokens;
  for (const std::string& special : specials) tokens.push_back({.text = special});
  const AddedTokens marks(std::move(tokens), specials);
  std::vector<std::string_view> parts;
  for (const std::string& text : texts)
    for_each_part(
        text, marks, true, [&](std::string_view part, size_t) { parts.push_back(part); }, [](const AddedToken&) {});
  return parts;
}

constexpr uint64_t kLearningVersion = 2;  // of reading and learning: a change invalidates cached tokenizers

std::unique_ptr<Tokenizer> learn_tokenizer(int64_t vocab, const std::vector<Source>& sources, const SourceTokensOptions& how,
                                           const DataCache& cache) {
  for (const Source& source : sources)
    if (!source.holds_text())
      base::fail_input("{}: token shards need the tokenizer they were made with: set data.tokenizer_file", source.origin);
  const std::vector<std::string> specials = specials_of(sources, how.document_options.renderer);
  if (vocab < 256 + static_cast<int64_t>(specials.size()))
    base::fail_input("data.vocab = {}: must be at least {}: 256 bytes and the special tokens {}", vocab, 256 + specials.size(),
                     fmt::join(specials, ", "));
  uint64_t content = kLearningVersion;
  for (const Source& source : sources) content = combine({content, content_hash(source, cache)});
  const uint64_t key =
      combine({content, static_cast<uint64_t>(vocab), static_cast<uint64_t>(kTrainingBytes),
               base::checksum(how.document_options.identity()), base::checksum(fmt::format("{}", fmt::join(specials, "\n")))});
  const auto stored = [&](DataCache::Damage damage) -> std::unique_ptr<Tokenizer> {
    const std::optional<std::string> json = cache.get("tokenizer", key, damage);
    return json ? make_bpe_tokenizer(read_tokenizer_json(*json, cache.path("tokenizer", key))) : nullptr;
  };
  if (std::unique_ptr<Tokenizer> found = stored(DataCache::Damage::warn)) return found;
  const std::unique_ptr<FileLock> lock = cache.lock("tokenizer", key);
  if (std::unique_ptr<Tokenizer> found = stored(DataCache::Damage::ignore)) return found;  // made since
  std::vector<std::string> texts;
  for (const Source& source : sources) append_texts(source, how, kTrainingBytes / static_cast<int64_t>(sources.size()), texts);
  const std::vector<std::string_view> parts = without_specials(texts, specials);
  Bpe bpe = train_bpe(parts, {.vocab = vocab, .threads = how.threads, .specials = specials});
  cache.put("tokenizer", key, write_tokenizer_json(bpe));
  return make_bpe_tokenizer(std::move(bpe));
}

// Whether the first record of a file is a conversation.
bool holds_conversations(const Source& source, const SourceTokensOptions& how) {
  constexpr size_t kFilesMax = 64;  // the files of a folder have one format
  ChunkOptions one = how.chunks;
  one.chunk_bytes = 1;
  size_t looked_at = 0;
  for (const SourceFile& file : source.files) {
    if (file.format != Format::jsonl && file.format != Format::json) continue;
    if (++looked_at > kFilesMax) break;
    const std::unique_ptr<ChunkReader> reader = make_chunk_reader({file}, one);
    Chunk chunk;
    Record record;
    if (reader->next(chunk) && !chunk.pieces.empty() &&
        parse_record(chunk[chunk.pieces[0]], how.document_options.text_field, record).empty() && record.kind != Record::Kind::text)
      return true;
  }
  return false;
}

// Checks the beginnings of all files before a large file is read for its hash. Split points are known only with the tokenizer, except for a
// learned one.
void look_at(const std::vector<Source>& sources, const DataOptions& data, const SourceTokensOptions& how) {
  ChunkOptions chunks = how.chunks;
  if (!data.learns_tokenizer()) chunks.is_split_point = [](char, char) { return true; };
  for (const Source& source : sources) check_beginnings(source.files, how.document_options, chunks);
}

// Samples of text: each source is windowed or packed separately.
void make_token_dataset(const DataOptions& data, const SampleOptions& options, Corpus& corpus) {
  std::vector<std::unique_ptr<TokenSamples>> parts;
  for (size_t i = 0; i < corpus.token_streams.size(); ++i)
    parts.push_back(make_samples(data.packing, corpus.token_streams[i], options, corpus.origins[i]));
  auto samples = std::make_unique<TokenDataset>(std::move(parts), options.length);
  for (size_t i = 0; i < data.weights.size(); ++i)
    corpus.streams.push_back({samples->training_of(static_cast<int64_t>(i)), data.weights[i]});
  corpus.samples = std::move(samples);
}

void make_preference_dataset(const DataOptions& data, const SampleOptions& options, Corpus& corpus, base::Log& log) {
  if (!data.weights.empty())
    base::fail_input("data.weights: data.kind = {} does not mix sources by weight. Leave data.weights out.", data.kind);
  std::vector<TokenShard> files;
  for (const auto& row : corpus.token_streams) files.insert(files.end(), row->files().begin(), row->files().end());
  auto samples = std::make_unique<PreferenceDataset>(std::make_shared<const TokenStream>(std::move(files)), options, corpus.origin);
  if (samples->left_out() > 0)
    log.warn("{}: {} left out: the prompt alone fills data.length = {}", corpus.origin, base::plural(samples->left_out(), "pair"),
             options.length);
  corpus.samples = std::move(samples);
}

}  // namespace

DocumentOptions document_options_of(const DataOptions& data, Renderer renderer) {
  return {.renderer = data.train_on_prompts ? all_targets(std::move(renderer)) : std::move(renderer),
          .text_field = data.text_field,
          .pairs = data.needs().pairs,
          .skip_bad = data.skips_bad_lines()};
}

std::unique_ptr<Tokenizer> named_tokenizer(const DataOptions& data) {
  if (!data.tokenizer_file.empty()) return read_tokenizer(data.tokenizer_file);
  return data.tokenizer == TokenizerKind::bytes ? make_byte_tokenizer() : nullptr;
}

int64_t vocab_bound(const DataOptions& data) {
  const std::unique_ptr<Tokenizer> tokenizer = named_tokenizer(data);
  return tokenizer ? tokenizer->vocab_size() : data.vocab;
}

void check_data(const DataOptions& data) {
  if (data.needs().table) read_table(data);
  if (data.needs().clips) check_clips(data);
  if (!data.needs().tokens) return;
  if (data.needs().rollouts) return check_rollouts(data);
  const std::unique_ptr<Tokenizer> tokenizer = named_tokenizer(data);
  const ChatFormat chat = choose_chat_format(data, tokenizer.get());
  if (!data.path.empty() || !data.sources.empty())
    look_at(find_sources(data), data, {.document_options = document_options_of(data, chat.renderer), .chunks = chunks_of(data)});
}

Corpus open_token_streams(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  const std::vector<Source> sources = find_sources(data);
  for (const Source& source : sources)
    if (const std::string words = describe_skipped(source.origin, source.skipped); !words.empty()) log.info("{}", words);
  const DataCache cache(options.cache_folder, log, options.stop);
  Corpus corpus;
  corpus.tokenizer = named_tokenizer(data);
  ChatFormat chat = choose_chat_format(data, corpus.tokenizer.get());
  SourceTokensOptions how{.document_options = document_options_of(data, options.renderer ? *options.renderer : chat.renderer),
                          .chunks = chunks_of(data),
                          .threads = options.threads};
  look_at(sources, data, how);
  if (!corpus.tokenizer) corpus.tokenizer = learn_tokenizer(data.vocab, sources, how, cache);
  for (const Source& source : sources) corpus.conversations.push_back(holds_conversations(source, how));
  if (!options.renderer && std::ranges::any_of(corpus.conversations, std::identity())) {
    check_markers(chat, *corpus.tokenizer);
    log.info("conversations become text by the template {}", chat.name);
    corpus.chat = std::move(chat);
  }
  corpus.from_cache = true;
  int64_t bytes = 0;
  for (const Source& source : sources) bytes += source.bytes();
  int64_t done = 0;
  for (const Source& source : sources) {
    how.progress = [&, done](int64_t now, int64_t) {
      if (options.stop && options.stop->requested())
        throw Error(Error::Kind::cancelled, fmt::format("stopped while tokenising {}", source.origin));
      if (options.progress) options.progress(done + now, bytes);
    };
    SourceTokens made = tokens_of(source, *corpus.tokenizer, how, cache, log);
    corpus.token_streams.push_back(std::move(made.stream));
    corpus.origins.push_back(source.origin);
    corpus.text_bytes += made.text_bytes;
    corpus.from_cache = corpus.from_cache && made.from_cache;
    corpus.origin += (corpus.origin.empty() ? "" : "; ") + source.origin;
    done += source.bytes();
  }
  return corpus;
}

Corpus open_corpus(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  Corpus corpus = open_token_streams(data, options, log);
  const SampleOptions samples{
      .length = data.length, .held_out_fraction = options.held_out_fraction, .padding = corpus.tokenizer->end_of_text()};
  if (data.needs().pairs)
    make_preference_dataset(data, samples, corpus, log);
  else
    make_token_dataset(data, samples, corpus);
  return corpus;
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path) { return open_tokenizer(path); }

}  // namespace cairn::data
