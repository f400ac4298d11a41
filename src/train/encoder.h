// Encoders of texts that lie in directories: models to evaluate, teachers, and those that clusters of queries are made with.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "data/options.h"
#include "evaluate/text_vectors.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::base {
class Log;
}

namespace cairn::train {

// A model of a directory without its head, in fp32 on one device.
struct OpenedEncoder {
  std::string path, option;  // `option`: what named it
  model::DecoderShape shape;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::FlatWeights> weights;
  model::Buffers buffers = {};
  std::unique_ptr<data::Tokenizer> tokenizer = {};  // null: the directory has none

  evaluate::TextEncoder texts();
  // Tables for texts of so many tokens, in place of those it was opened with. Refuses a model that reads fewer.
  void prepare_for_length(int64_t tokens);
};

// `tokens_max`: the longest text. Refuses a model that reads fewer. `option` names the directory in messages: "retrieval.teacher".
OpenedEncoder open_encoder(const std::string& folder, const std::string& option, int64_t tokens_max, const at::Device& device,
                           base::Log& log);

// The file in a snapshot that says how a run made vectors of texts, and its text.
inline constexpr const char* kRetrievalFile = "retrieval.json";
std::string format_retrieval(const data::RetrievalOptions& options);
// Sets pooling and lengths as the directory's file says, where it has one.
void read_retrieval_file(const std::string& folder, data::RetrievalOptions& into);

}  // namespace cairn::train
