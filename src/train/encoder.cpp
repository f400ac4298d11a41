#include "train/encoder.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "data/tokenizer/open_tokenizer.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "snapshot/pretrained.h"

namespace cairn::train {
namespace {

constexpr int64_t kRetrievalFileBytesMax = 1 << 16;

}  // namespace

evaluate::TextEncoder OpenedEncoder::texts() {
  return {.model = *model, .weights = *weights, .buffers = buffers, .padding = tokenizer ? tokenizer->find_end_of_text().value_or(0) : 0};
}

void OpenedEncoder::prepare_for_length(int64_t tokens) {
  if (tokens > shape.length)
    base::fail_input("{} = {}: the model reads at most {} tokens, and a text may have {}. Set retrieval.query_tokens and passage_tokens.",
                     option, path, shape.length, tokens);
  shape.table_length = tokens;
  model = model::make_encoder(shape);
  buffers = model->make_buffers(weights->flat().options());
}

OpenedEncoder open_encoder(const std::string& folder, const std::string& option, int64_t tokens_max, const at::Device& device,
                           base::Log& log) {
  snapshot::Pretrained opened = snapshot::open_pretrained(folder, log);
  snapshot::check_reads_text(folder, opened.shape);
  opened.shape.tied = true;  // a head of its own is not read
  OpenedEncoder encoder{
      .path = opened.path, .option = option, .shape = opened.shape, .model = model::make_encoder(opened.shape), .weights = {}};
  const at::Tensor flat = at::empty({encoder.model->elements()});
  opened.load_into(encoder.model->layout().views(flat));
  encoder.weights = std::make_unique<model::FlatWeights>(encoder.model->layout(), flat.to(device));
  encoder.prepare_for_length(tokens_max);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (!encoder.tokenizer && opened.texts.contains(name)) encoder.tokenizer = data::open_tokenizer(opened.path);
  return encoder;
}

std::string format_retrieval(const data::RetrievalOptions& options) {
  return base::pretty(base::OrderedJson{{"pooling", base::enum_name(data::kRetrievalPoolingNames, options.pooling)},
                                        {"query_tokens", options.query_tokens},
                                        {"passage_tokens", options.passage_tokens}}) +
         "\n";
}

void read_retrieval_file(const std::string& folder, data::RetrievalOptions& into) {
  const std::filesystem::path file = std::filesystem::path(folder) / kRetrievalFile;
  if (!base::path_exists(file)) return;
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(file, kRetrievalFileBytesMax), 4);
  if (!parsed.trouble.empty()) base::fail_corrupt(file.string(), parsed.trouble);
  const auto number = [&](const char* key, int64_t& value) {
    const auto found = parsed.value.is_object() ? parsed.value.find(key) : parsed.value.end();
    if (found == parsed.value.end() || !found->is_number_integer() || found->get<int64_t>() < 1 || found->get<int64_t>() > (1 << 20))
      base::fail_corrupt(file.string(), fmt::format("no length \"{}\"", key));
    value = found->get<int64_t>();
  };
  number("query_tokens", into.query_tokens);
  number("passage_tokens", into.passage_tokens);
  const std::string name =
      parsed.value.contains("pooling") && parsed.value["pooling"].is_string() ? parsed.value["pooling"].get<std::string>() : "";
  const auto known = std::ranges::find_if(data::kRetrievalPoolingNames, [&](const auto& one) { return one.name == name; });
  if (known == std::end(data::kRetrievalPoolingNames)) base::fail_corrupt(file.string(), "no known \"pooling\"");
  into.pooling = known->value;
}

}  // namespace cairn::train
