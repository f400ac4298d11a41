#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/schema.h"
#include "model/decoder/lora.h"
#include "model/decoder/shape.h"

namespace cairn::model {

class Model;
class Objective;

// The recipe's model.* keys.
struct ModelOptions {
  std::string kind = "llama";
  std::vector<std::string> train;  // what is trained, by name pattern or role; empty: the adapters, or all where there are none
  std::string from;                // a directory whose shape and weights training starts from; empty: a new model
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
  bool convert = false;
  bool batch_norm = false;
};

base::Schema<ModelOptions> model_schema();

// What the data ask of a model.
struct DataShape {
  int64_t vocab = 0;     // ids of a tokenizer
  int64_t length = 0;    // tokens of a sample
  int64_t features = 0;  // numbers of a sample, for classifiers
  int64_t classes = 0;
  int64_t end_of_text = -1;  // the tokenizer's id for it; -1: unknown
};

// A model and what it is trained for.
struct BuiltModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
};

// The model called options.kind, built without values. Shapes that cannot work are refused. The list is in models.cpp.
BuiltModel build_model(const ModelOptions& options, const DataShape& inputs);
// The model of a shape that was read from options.from, with adapters; the data must fit it, and an adapter a layer.
BuiltModel build_model(const ModelOptions& options, const DataShape& inputs, DecoderShape shape, const LoraShape& lora = {});
// The keys as that shape has them (its wiring only where that is not to be converted); all else as in `options`.
ModelOptions options_of(const DecoderShape& shape, ModelOptions options = {});
std::vector<std::string> model_names();

}  // namespace cairn::model
