#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/compute_options.h"
#include "data/tokenizer.h"
#include "evaluate/ensemble/posterior.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::base {
class Log;
}

namespace cairn::cli {

// A directory opened to write texts with: a run, a snapshot, a Hugging Face directory, or an ensemble of these.
struct LanguageModel {
  std::string path;           // where its tokenizer is
  model::DecoderShape shape;  // of an ensemble: of its first expert, with the length that all of them read
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::FlatWeights> weights;
  model::Buffers buffers = {};                    // empty until prepare_for_length()
  std::unique_ptr<data::Tokenizer> tokenizer;     // null: the directory has none
  std::vector<int32_t> stops;                     // what ends a text, by generation_config.json, else config.json, else the tokenizer
  bool trained_here = false;                      // a snapshot of Cairn: documents begin after the end of another
  std::vector<model::DecoderShape> experts = {};  // of an ensemble
  evaluate::MixtureOptions mix = {};

  // Makes what the model needs to read so many tokens, its own limit at most. Once, before the first is read: a table for all that a
  // config.json promises may fit no memory.
  void prepare_for_length(int64_t tokens);
  // Refuses, naming `option`, where there is no tokenizer.
  const data::Tokenizer& require_tokenizer(std::string_view option) const;
  // The ids that a text is continued from: with what the tokenizer puts before a text, or here trained, what ends the one before it.
  std::vector<int32_t> prompt_ids(std::string_view text, std::string_view option) const;
  // What stands before every text (perhaps nothing), and what begins one that would else be empty (nothing where the model has no such
  // token).
  std::vector<int32_t> text_prefix() const;
  std::optional<int32_t> first_token() const;
};

// `domain`: of an ensemble, the one whose prior is taken; empty: none.
LanguageModel open_language_model(const std::string& folder, base::Log& log, const ComputeOptions& on = {}, const std::string& domain = "");

}  // namespace cairn::cli
