#include "data/options.h"

#include "data/corpus/source_file.h"
#include "data/sampler.h"

namespace cairn::data {

base::Schema<DataOptions> data_schema() {
  using O = DataOptions;
  return {
      "data",
      "The training data: sources, tokenizer, packing and order of samples.",
      {{"kind", &O::kind,
        "What the samples are: text, preference pairs (a chosen and a rejected answer), rollouts (answers of a policy with advantages, for "
        "GRPO), or points on spirals for a classifier.",
        base::one_of(data_kinds())},
       {"path", &O::path, "A file, a folder or a pattern (texts/*.jsonl); empty: the built-in stories.", base::path()},
       {"sources", &O::sources, "Several paths instead of `path`: a mixture.", base::path()},
       {"weights", &O::weights, "Sampling weight of each source, on any scale; empty: in proportion to its size.", base::more_than(0)},
       {"format", &O::format, "File format: plain text, JSON lines, a JSON list, token shards; auto: detected from name and content.",
        base::one_of(format_names())},
       {"text_field", &O::text_field, "The field of a JSON record that holds its text."},
       {"template",
        &O::chat_template,
        "How conversations become text: model (the chat template in the tokenizer's folder), chatml, alpaca, plain, or a file X.jinja; "
        "auto: the model's, else chatml where the tokenizer has its markers, else alpaca.",
        base::path_or_word(".jinja"),
        {"chat_template"}},
       {"template_date", &O::template_date,
        "The date that a chat template which asks for one (strftime_now) writes, as 2026-01-31; empty: the day on which the run starts, "
        "which "
        "the run's recipe.toml records for a resume."},
       {"train_on_prompts",
        &O::train_on_prompts,
        "Whether prompts are training targets too, not only what the assistant says.",
        base::any(),
        {},
        {"learn_prompts"}},
       {"on_bad", &O::on_bad, "What happens to lines that cannot be used: refuse the first one, or skip and count all.", kOnBadLineNames},
       {"line_bytes", &O::line_bytes, "Longest line, JSON record or text without a split point, in bytes.", base::between(1, 1 << 30)},
       {"tokenizer", &O::tokenizer, "Tokenizer where no file is named: one token per byte, or a BPE learned from the text.",
        kTokenizerKindNames},
       {"tokenizer_file", &O::tokenizer_file,
        "An existing tokenizer: tokenizer.json, tokenizer.model, vocab.json, or a folder with one; empty: as `tokenizer` says.",
        base::path()},
       {"vocab", &O::vocab, "Vocabulary size of a BPE learned from the text.", base::between(257, 1 << 20)},
       {"length", &O::length, "Tokens per sample (sequence length).", base::between(1, 1 << 24), {"seq_length"}},
       {"packing", &O::packing,
        "How documents fill samples: stream (windows across documents), separate (the same windows, attention within documents), documents "
        "(whole documents, packed), none (one document per sample), sequences (one document per sample, neither cut nor padded: needs "
        "context.plan).",
        kPackingNames},
       {"sampler", &O::sampler, "Which samples come next; [sampler] has the keys of those that have some.", base::one_of(sampler_names())},
       {"subset", &O::subset, "A file that `cairn select` wrote: the documents to train on; empty: all.", base::path()},
       {"label", &O::label, "The field of a JSON record, or the column of a table, that holds the class; of a table, empty: the last one."},
       {"header", &O::header, "Tables: whether the first line names the columns."},
       {"ignore", &O::ignore, "Tables: columns that are not read."},
       {"standardize", &O::standardize, "Tables: whether every column gets mean 0 and deviation 1, by the training rows."},
       {"test_file", &O::test_file, "Tables: a file of rows to evaluate on; empty: the last eval.fraction of the rows.", base::path()},
       {"stories_bytes", &O::stories_bytes, "Size of the built-in corpus of stories.", base::between(1000, 1e10)},
       {"stories_seed", &O::stories_seed, "Seed of the built-in stories.", base::at_least(0)}}};
}

}  // namespace cairn::data
