#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/schema.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/attention_pattern.h"
#include "model/decoder/shape.h"
#include "model/decoder/sparse_options.h"
#include "model/decoder/spectral_options.h"
#include "model/decoder/stream_options.h"
#include "model/experts/options.h"
#include "model/hyperbolic/options.h"
#include "model/supernet/options.h"
#include "model/vision/options.h"

namespace cairn::model {

class Model;
class Objective;

// The recipe's model.* keys.
struct ModelOptions {
  std::string kind = "llama";
  std::vector<std::string> train;  // trained parameters, by name pattern or role; empty: the adapters, or all where there are none
  std::string from;                // a directory with the shape and the weights to start from; empty: a new model
  int64_t layers = 4;
  int64_t embed = 128;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 0;  // 0: embed / heads
  int64_t mlp = 352;
  bool tied = true;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  double dropout = 0;
  std::string residual = "standard";
  std::string ladder_layers = "all";
  // Of linear attention (model.kind = "gla").
  LinearAttentionShape::Decay decay = LinearAttentionShape::Decay::gated;
  double expand_k = 0.5, expand_v = 1;
  int64_t chunk = 64;
  std::string softmax_layers = "last 0";
  bool convert = false;
  bool batch_norm = false;
  int64_t patch = 4;             // of transformers that read pictures
  std::vector<int64_t> hidden;   // widths of the hidden layers of a classifier; empty: `layers` of `embed`
  PatternOptions attention;      // model.attention.*
  StreamOptions parscale;        // model.parscale.*
  ExpertOptions moe;             // model.moe.*
  ConvOptions cnn;               // model.cnn.*
  SupernetOptions supernet;      // supernet.*
  SparseOptions sparse;          // model.sparse.*
  SpectralOptions spectral;      // model.spectral.*
  HyperbolicOptions hyperbolic;  // model.hyperbolic.*
};

base::Schema<ModelOptions> model_schema();

// The sizes that the data determine.
struct DataShape {
  int64_t vocab = 0;     // of the tokenizer; 0: no tokens
  int64_t length = 0;    // tokens per sample
  int64_t features = 0;  // numbers per sample, for classifiers
  int64_t classes = 0;
  int64_t end_of_text = -1;              // token id; -1: unknown
  int64_t frames = 0, size = 0;          // of clips: frames, and their height and width
  int64_t channels = 0;                  // of pictures of size x size pixels; 0: samples are none
  std::vector<std::string> labels = {};  // names of the classes; empty: they have numbers only
  bool retrieval = false;                // samples are queries with passages: the objective compares vectors of texts
};

// A model without values, and its objective.
struct BuiltModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
};

// Builds a model of kind options.kind. Refuses shapes that cannot work. The registry is in models.cpp.
BuiltModel build_model(const ModelOptions& options, const DataShape& inputs);
// Builds the model of a shape that was read from options.from, with adapters. Refuses data that do not fit, and adapters without a layer.
BuiltModel build_model(const ModelOptions& options, const DataShape& inputs, DecoderShape shape, const AdapterShape& adapter = {});
// Refuses a tokenizer with more ids than the model has. `model` names it in the message. Fewer are usual: vocabularies are padded.
void check_tokenizer_fits(const std::string& model, int64_t vocab, int64_t tokenizer_ids);
// `options` with the keys of that shape. The wiring is kept where options.convert is set.
ModelOptions options_of(const DecoderShape& shape, ModelOptions options = {});
std::vector<std::string> model_names();

}  // namespace cairn::model
