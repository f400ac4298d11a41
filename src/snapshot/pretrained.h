// Hugging Face directories: opened for reading, and written so that `transformers` opens them.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "mesh/named_tensor.h"
#include "model/decoder/shape.h"
#include "model/parameter.h"
#include "snapshot/adapter.h"
#include "snapshot/masks.h"
#include "snapshot/spectral.h"
#include "snapshot/weight_files.h"

namespace cairn::base {
class Disk;
class Log;
}  // namespace cairn::base

namespace cairn::snapshot {

// An opened directory: the model's shape, its tensors, and the texts beside them (tokenizer.json, tokenizer_config.json with the chat
// template, generation_config.json, ...), which are passed on unchanged.
struct Pretrained {
  std::string path;
  model::DecoderShape shape;
  WeightFiles weights;
  std::map<std::string, std::string> texts;  // without config.json
  std::optional<Adapter> adapter;            // of a snapshot of a run that trained one
  mesh::NamedTensors masks;                  // of a pruned model: a bit tensor for each pruned weight (masks.h)
  std::optional<SparseState> sparse;         // of a snapshot of a run that trained a pruned model
  std::optional<SpectralState> spectral;     // of a snapshot of spectral training: weights that are not in the files

  // Copies the weights into the parameters of a model of this shape; an adapter and forms of weights are merged into them. An adapter that
  // is no part of any weight must be among the parameters.
  void load_into(const mesh::NamedTensors& parameters) const;
  // The shape of such an adapter, with which the model is to be made; rank 0: there is none.
  model::AdapterShape unmerged_adapter() const;
  // The tensor of one parameter in the files, in their dtype, without what is merged; undefined where they do not have it.
  at::Tensor view(const std::string& parameter) const;
  // Calls `take` for each parameter of a model of this shape in order, with its index and a view of the whole tensor, from which a rank
  // copies its shard. Only what is copied is read from the files; with an adapter, this process holds the whole model for a while.
  void visit(const std::vector<model::Parameter>& parameters, const std::function<void(size_t, const at::Tensor&)>& take) const;
};

// DIR may be a Hugging Face directory, a snapshot, or a run directory (its newest good snapshot). The manifest of a snapshot is checked.
// `share`: the fraction of the parameters that ranks of this machine load. Throws bad_input if it does not fit into memory.
Pretrained open_pretrained(const std::string& folder, base::Log& log, double share = 1);

// Throws bad_input unless the tensors are those of a model of this shape, naming what is missing, unexpected or of another shape.
// `elsewhere`: names of tensors that are not among them.
void check_tensors(const model::DecoderShape& shape, const WeightFiles& weights, const std::vector<std::string>& elsewhere = {});

// Throws bad_input if the model of this directory reads pictures.
void check_reads_text(const std::string& folder, const model::DecoderShape& shape);

// The shape of a saved model and its tokenizer file (tokenizer.json, tokenizer.model or vocab.json; empty: none), without reading tensors.
struct ModelOutline {
  model::DecoderShape shape;
  std::string tokenizer_file;
  std::vector<std::string> masked_weights = {};  // by name, of a pruned model
};
ModelOutline read_outline(const std::string& folder);

struct ExportOptions {
  c10::ScalarType dtype = c10::ScalarType::Float;  // Float, BFloat16 or Half
  int64_t shard_bytes = 5'000'000'000;             // a larger model is cut into files of at most this, or one tensor
};

// Writes a directory that appears complete or not at all. It must not exist yet, unless empty. `texts`: as in Pretrained.
void write_pretrained(const std::string& folder, const model::DecoderShape& shape, const mesh::NamedTensors& parameters,
                      std::map<std::string, std::string> texts, const ExportOptions& options, const base::Disk& disk);
// The same with a config.json among the texts.
void write_model_folder(const std::string& folder, const mesh::NamedTensors& parameters, const std::map<std::string, std::string>& texts,
                        const ExportOptions& options, const base::Disk& disk);

}  // namespace cairn::snapshot
