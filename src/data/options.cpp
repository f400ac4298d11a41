#include "data/options.h"

#include "data/corpus/source_file.h"
#include "data/sampler.h"

namespace cairn::data {

base::Schema<DataOptions> data_schema() {
  using O = DataOptions;
  return {
      "data",
      "What is trained on: text, how it becomes tokens, and in which order they come.",
      {{"kind", &O::kind, "What the samples are: text, pairs of a chosen and a rejected answer, or points on spirals for a classifier.",
        base::one_of(data_kinds())},
       {"path", &O::path, "A file, a folder or a pattern (texts/*.jsonl); empty: the built-in little stories."},
       {"sources", &O::sources, "Several of them, instead of `path`: a mixture."},
       {"weights", &O::weights, "The share of each source in the samples, in any unit; none: as much of each as there is.",
        base::more_than(0)},
       {"format", &O::format, "What the files hold: plain text, JSON lines, a JSON list, token shards; auto: seen from name and content.",
        base::one_of(format_names())},
       {"text_field", &O::text_field, "The field of a JSON record that holds its text."},
       {"template",
        &O::chat_template,
        "How conversations become text: model (the chat template in the tokenizer's folder), chatml, alpaca, plain, or a file X.jinja; "
        "auto: the model's, else chatml where the tokenizer has its markers, else alpaca.",
        base::any(),
        {"chat_template"}},
       {"learn_prompts", &O::learn_prompts, "Whether what the assistant did not say is learned too."},
       {"on_bad", &O::on_bad, "What becomes of lines that cannot be used: the first is refused, or all are skipped and counted.",
        kOnBadLineNames},
       {"line_bytes", &O::line_bytes, "The longest line, JSON record or stretch of text without a place to cut that is taken.",
        base::between(1, 1 << 30)},
       {"tokenizer", &O::tokenizer, "How text becomes tokens: each byte, or byte pairs learned from the text.", kTokenizerKindNames},
       {"tokenizer_file", &O::tokenizer_file,
        "A tokenizer to use as it is: tokenizer.json, tokenizer.model, vocab.json, or a folder with one; empty: as `tokenizer` says."},
       {"vocab", &O::vocab, "Tokens of a BPE learned from the text.", base::between(257, 1 << 20)},
       {"length", &O::length, "Tokens that one sample holds.", base::between(1, 1 << 24)},
       {"packing", &O::packing,
        "How documents fill samples: stream (one long row, read across documents), separate (the same, each document for itself), "
        "documents "
        "(whole ones, packed), none (one a sample).",
        kPackingNames},
       {"sampler", &O::sampler, "The order in which samples come.", base::one_of(sampler_names())},
       {"stories_bytes", &O::stories_bytes, "How much text the built-in stories make.", base::between(1000, 1e10)},
       {"stories_seed", &O::stories_seed, "Which stories are told.", base::at_least(0)}}};
}

}  // namespace cairn::data
