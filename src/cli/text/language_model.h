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
#include "model/decoder/adapter_shape.h"
#include "model/decoder/shape.h"
#include "model/model.h"
#include "parallel/plan.h"

namespace cairn::base {
class Log;
}
namespace cairn::model {
class ServedAdapters;
}

namespace cairn::cli {

// A model opened for generation or evaluation: a run, a snapshot, a Hugging Face directory, an ensemble of these, or a store of
// `cairn unlearn`.
struct LanguageModel {
  std::string path;           // the directory of its tokenizer
  model::DecoderShape shape;  // of an ensemble: its first expert's, with the shortest context length of all
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::FlatWeights> weights;
  model::Buffers buffers = {};                    // empty until prepare_for_length()
  std::unique_ptr<data::Tokenizer> tokenizer;     // null: the directory has none
  std::vector<int32_t> stops;                     // ids that end a text: from generation_config.json, else config.json, else the tokenizer
  bool trained_here = false;                      // a snapshot of Cairn: in training, a document followed the end token of another
  std::vector<model::DecoderShape> experts = {};  // of an ensemble
  evaluate::MixtureOptions mix = {};
  model::AdapterShape own_adapter = {};                        // that the model was trained with and has beside its weights; rank 0: none
  std::shared_ptr<const model::ServedAdapters> adapters = {};  // null: none
  bool adapters_together = false;                              // the mean of the answers with each adapter: a store of `cairn unlearn`
  std::string store = {};                                      // the folder of that store
  int64_t deletions = 0;                                       // which it knew of when it was opened
  std::optional<parallel::Plan> plan = {};                     // the model is sharded by it, and `weights` are this rank's

  // Makes the buffers (position tables) for sequences of this length, at most the model's own limit. Call it once, before the first pass:
  // tables for the full length that a config.json promises may not fit into memory.
  void prepare_for_length(int64_t tokens);
  // Reads adapters of this model into memory: NAME=DIR each. Call it before prepare_for_length().
  void serve_adapters(const std::vector<std::string>& given);
  // The tokenizer. Refuses, naming `option`, if there is none.
  const data::Tokenizer& require_tokenizer(std::string_view option) const;
  // Encodes a prompt after text_prefix().
  std::vector<int32_t> prompt_ids(std::string_view text, std::string_view option) const;
  // The ids before every text (data::text_prefix), and the id that begins an otherwise empty text, if the model has one.
  std::vector<int32_t> text_prefix() const;
  std::optional<int32_t> first_token() const;
};

// Opens a directory. `domain` chooses a prior of an ensemble; empty: none.
LanguageModel open_language_model(const std::string& folder, base::Log& log, const ComputeOptions& on = {}, const std::string& domain = "");

// Whether records have been deleted from the store since this model was opened: it must be opened again before it answers. False for
// anything but a store.
bool has_new_deletions(const LanguageModel& model);

// One rank's place on a mesh that shards a model along tp, pp and ep.
struct MeshPlace {
  mesh::Mesh mesh;
  int rank = 0;
  int ranks_here = 1;          // on this machine
  std::string placement = {};  // of experts along ep: a file; empty: by their numbers
};
// Opens one rank's shards of a directory's model. An ensemble is refused.
LanguageModel open_sharded_model(const std::string& folder, base::Log& log, const MeshPlace& place, const ComputeOptions& on);
// Refuses a mesh that the directory's model cannot be sharded over. Reads no tensors.
void check_mesh(const std::string& folder, const mesh::Mesh& mesh);

}  // namespace cairn::cli
