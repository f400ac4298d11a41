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
#include "data/images/image_dataset.h"
#include "data/retrieval/dataset.h"
#include "data/samples/preference_dataset.h"
#include "data/samples/rollout_dataset.h"
#include "data/samples/subset_samples.h"
#include "data/samples/token_dataset.h"
#include "data/selection/pool.h"
#include "data/selection/subset_file.h"
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

// What data.subset can do nothing with, before anything is read.
void check_subset_keys(const DataOptions& data) {
  if (data.subset.empty()) return;
  if (!data.needs().is_text() || data.needs().retrieval)
    base::fail_input("data.subset = {}: names documents of text, and data.kind = {} has none. Leave it out.", data.subset, data.kind);
  const DocumentSubset subset = read_subset(data.subset);
  if (subset.ids.empty()) base::fail_input("data.subset = {}: it has no documents. Select some.", data.subset);
  if (!subset.weights.empty() && data.packing != Packing::none && data.packing != Packing::sequences)
    base::fail_input(
        "data.packing = {}: data.subset = {} gives documents weights, and samples of this packing have parts of several documents. Set "
        "data.packing to none.",
        base::enum_name<Packing>(kPackingNames, data.packing), data.subset);
}

// The documents of each source that data.subset chose.
std::vector<ChosenDocuments> chosen_documents(const DataOptions& data, const Corpus& corpus) {
  const DocumentSubset subset = read_subset(data.subset);
  int64_t documents = 0;
  for (const auto& stream : corpus.token_streams) documents += stream->documents();
  check_source(subset, "data.subset", data.subset, corpus.pool_digest, documents);
  std::vector<ChosenDocuments> chosen;
  int64_t first = 0;
  size_t at = 0;
  for (const auto& stream : corpus.token_streams) {
    ChosenDocuments& here = chosen.emplace_back();
    for (; at < subset.ids.size() && subset.ids[at] < first + stream->documents(); ++at) {
      here.documents.push_back(subset.ids[at] - first);
      if (!subset.weights.empty()) here.weights.push_back(subset.weights[at]);
    }
    first += stream->documents();
  }
  return chosen;
}

// The chosen documents of sources first .. last - 1 as one stream. Their tokens go into the cache, as those of a file of their own would.
std::shared_ptr<const TokenStream> chosen_stream(const Corpus& corpus, const std::vector<ChosenDocuments>& chosen, size_t first,
                                                 size_t last, const DataCache& cache, uint64_t tokens_key) {
  uint64_t key = tokens_key;
  bool any = false;
  for (size_t i = first; i < last; ++i) {
    key = combine({key, i, base::checksum(std::as_bytes(std::span(chosen[i].documents)))});
    any = any || !chosen[i].documents.empty();
  }
  if (!any) return nullptr;
  const DataCache::Found found = cache.tokens(key, corpus.tokenizer->vocab_size(), [&](TokenWriter& writer) {
    for (size_t i = first; i < last; ++i) append_documents(*corpus.token_streams[i], chosen[i].documents, writer);
    return TokenFacts{.tokenizer = hash(*corpus.tokenizer)};
  });
  return std::make_shared<const TokenStream>(std::vector<TokenShard>{found.tokens});
}

// Samples of the chosen documents alone, with the held-out part of each source. Without weights of sources, the documents of all sources
// are packed together, with the first, as if they were one file.
std::vector<std::unique_ptr<TokenSamples>> subset_parts(const DataOptions& data, const SampleOptions& options, const Corpus& corpus,
                                                        const DataCache& cache, uint64_t tokens_key, base::Log& log) {
  std::vector<ChosenDocuments> chosen = chosen_documents(data, corpus);
  const size_t sources = chosen.size();
  std::vector<std::unique_ptr<TokenSamples>> wholes, parts;
  int64_t left_out = 0;
  for (size_t i = 0; i < sources; ++i) {
    if (chosen[i].documents.empty() && !data.weights.empty())
      base::fail_input("data.weights: data.subset = {} has no document of {}. Leave that source out.", data.subset, corpus.origins[i]);
    wholes.push_back(whole_samples(data.packing, corpus.token_streams[i], chosen[i], options, corpus.origins[i], left_out));
  }
  bool trains = false;
  for (size_t i = 0; i < sources; ++i) {
    const size_t first = data.weights.empty() && i > 0 ? sources : i, last = data.weights.empty() ? sources : i + 1;
    std::vector<float> weights;
    for (size_t j = first; j < last; ++j) weights.insert(weights.end(), chosen[j].weights.begin(), chosen[j].weights.end());
    parts.push_back(make_subset_samples(data.packing, chosen_stream(corpus, chosen, first, last, cache, tokens_key), std::move(weights),
                                        std::move(wholes[i]), options, data.weights.empty() ? corpus.origin : corpus.origins[i]));
    trains = trains || parts.back()->count() > parts.back()->held_out();
  }
  if (!trains)
    base::fail_input("data.subset = {}: all of its documents are held out. Select others, or set eval.fraction to 0.", data.subset);
  if (left_out > 0)
    log.warn("data.subset: {} held out (eval.fraction) and {} not trained on", base::plural(left_out, "document"),
             left_out == 1 ? "is" : "are");
  return parts;
}

// Samples of text: each source is windowed or packed separately.
void make_token_dataset(const DataOptions& data, const SampleOptions& options, const DataCache& cache, Corpus& corpus, base::Log& log) {
  std::vector<std::unique_ptr<TokenSamples>> parts;
  if (!data.subset.empty()) {
    uint64_t key = combine({corpus.pool_digest, hash(*corpus.tokenizer), static_cast<uint64_t>(corpus.tokenizer->vocab_size())});
    for (const auto& stream : corpus.token_streams) key = combine({key, digest(*stream)});
    parts = subset_parts(data, options, corpus, cache, key, log);
  } else {
    for (size_t i = 0; i < corpus.token_streams.size(); ++i)
      parts.push_back(make_samples(data.packing, corpus.token_streams[i], options, corpus.origins[i]));
  }
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
  check_subset_keys(data);
  if (data.needs().table) read_table(data);
  if (data.needs().clips) check_clips(data);
  if (data.needs().images) image_outline(data);
  if (!data.needs().tokens) return;
  if (data.needs().rollouts) return check_rollouts(data);
  if (data.needs().retrieval) return check_retrieval(data);
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
  if (options.hash_pool || !data.subset.empty()) corpus.pool_digest = pool_digest(sources, data, cache);
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
  check_subset_keys(data);
  Corpus corpus = open_token_streams(data, options, log);
  const SampleOptions samples{
      .length = data.length, .held_out_fraction = options.held_out_fraction, .padding = corpus.tokenizer->end_of_text()};
  if (data.needs().pairs)
    make_preference_dataset(data, samples, corpus, log);
  else
    make_token_dataset(data, samples, DataCache(options.cache_folder, log, options.stop), corpus, log);
  return corpus;
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path) { return open_tokenizer(path); }

}  // namespace cairn::data
