#include "data/open.h"

#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "data/clips/clip_dataset.h"
#include "data/corpus/source_tokens.h"
#include "data/images/image_dataset.h"
#include "data/retrieval/dataset.h"
#include "data/samples/rollout_dataset.h"
#include "data/samples/spirals.h"
#include "data/selection/subset_file.h"
#include "data/table/table_dataset.h"

namespace cairn::data {
namespace {

OpenedData open_rollouts(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  check_rollouts(data);
  OpenedData opened{.tokenizer = tokenizer_of_rollouts(data), .length = data.length};
  const DataCache cache(options.cache_folder, log, options.stop);
  for (const Source& source : find_sources(data)) {
    opened.origin += (opened.origin.empty() ? "" : "; ") + source.origin;
    opened.digest = combine({opened.digest, content_hash(source, cache)});
  }
  auto samples = std::make_unique<RolloutDataset>(
      read_rollouts(data, opened.tokenizer->vocab_size()),
      SampleOptions{.length = data.length, .held_out_fraction = options.held_out_fraction, .padding = opened.tokenizer->end_of_text()},
      opened.origin);
  if (samples->left_out() > 0)
    log.warn("{}: {} left out: the prompt alone fills data.length = {}", opened.origin, base::plural(samples->left_out(), "rollout"),
             data.length);
  opened.samples = std::move(samples);
  return opened;
}

OpenedData open_rows(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  TableSamples opened = open_table(data, options.held_out_fraction, log);
  return {.samples = std::move(opened.samples),
          .streams = std::move(opened.streams),
          .features = opened.features,
          .classes = opened.classes,
          .origin = opened.table.sources.front().origin,
          .digest = opened.digest};
}

}  // namespace

OpenedData open_data(const DataOptions& data, const CorpusOptions& options, base::Log& log) {
  if (data.needs().table) return open_rows(data, options, log);
  if (data.needs().clips) {
    OpenedClips opened = open_clips(data, {.held_out_fraction = options.held_out_fraction, .seed = options.seed});
    return {.samples = std::move(opened.samples),
            .classes = data.clips.classes,
            .shape = {.frames = data.clips.frames, .size = data.clips.size},
            .origin = data.path.empty() ? data.needs().built_in : data.path,
            .digest = opened.digest};
  }
  if (data.needs().images) {
    OpenedImages opened = open_images(data, {.held_out_fraction = options.held_out_fraction, .seed = options.seed});
    return {.samples = std::move(opened.samples),
            .classes = opened.outline.classes,
            .image = {.channels = opened.outline.channels, .size = data.images.size, .class_names = std::move(opened.outline.class_names)},
            .origin = data.path.empty() ? data.needs().built_in : data.path,
            .digest = opened.digest};
  }
  if (const DataNeeds& needs = data.needs(); !needs.tokens)
    return {.samples = make_spirals({.classes = needs.classes, .held_out_fraction = options.held_out_fraction}),
            .features = needs.features,
            .classes = needs.classes,
            .origin = needs.built_in};
  if (data.needs().rollouts) return open_rollouts(data, options, log);
  if (data.needs().retrieval) return open_retrieval(data, options);
  Corpus corpus = open_corpus(data, options, log);
  uint64_t all = 0;
  for (const auto& row : corpus.token_streams) all = combine({all, digest(*row)});
  if (!data.subset.empty()) all = combine({all, read_subset(data.subset).hash()});
  return {.samples = std::move(corpus.samples),
          .tokenizer = std::move(corpus.tokenizer),
          .streams = std::move(corpus.streams),
          .length = data.length,
          .origin = std::move(corpus.origin),
          .digest = all,
          .chat = std::move(corpus.chat)};
}

}  // namespace cairn::data
