#include "data/options.h"

#include "data/sampler.h"

namespace cairn::data {

base::Schema<DataOptions> data_schema() {
  using O = DataOptions;
  return {"data",
          "What is trained on: text, how it becomes tokens, and in which order they come.",
          {{"kind", &O::kind, "What the samples are: text, or points on spirals for a classifier.", base::one_of({"text", "spirals"})},
           {"path", &O::path, "A text file; empty: the built-in little stories. Documents end at <|endoftext|>."},
           {"tokenizer", &O::tokenizer, "How text becomes tokens: each byte, or byte pairs learned from the text.",
            base::one_of({"bytes", "bpe"})},
           {"tokenizer_file", &O::tokenizer_file,
            "A tokenizer to use as it is: tokenizer.json, tokenizer.model, vocab.json, or a folder with one; empty: as `tokenizer` says."},
           {"vocab", &O::vocab, "Tokens of a BPE learned from the text.", base::between(257, 1 << 20)},
           {"length", &O::length, "Tokens that one sample holds.", base::between(1, 1 << 24)},
           {"sampler", &O::sampler, "The order in which samples come.", base::one_of(sampler_names())},
           {"stories_bytes", &O::stories_bytes, "How much text the built-in stories make.", base::between(1000, 1e10)},
           {"stories_seed", &O::stories_seed, "Which stories are told.", base::at_least(0)}}};
}

}  // namespace cairn::data
