#include "data/chat/model_files.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "data/tokenizer/declared_tokens.h"

namespace cairn::data {
namespace {

using base::OrderedJson;
using Texts = std::map<std::string, std::string>;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kGeneration = "generation_config.json";

OrderedJson parsed(const Texts& texts, const char* name) {
  const auto found = texts.find(name);
  if (found == texts.end()) return OrderedJson::object();
  OrderedJson json = base::parse_ordered_json(found->second);
  if (!json.is_object()) base::fail_input("{} that came with the model is not a JSON object. Fix the file, or remove it there.", name);
  return json;
}

void put_template(const ChatFormat& format, const Tokenizer& tokenizer, Texts& texts) {
  put_file(format.folder, kConfig, texts);
  if (format.is_own) return put_file(format.folder, kTemplate, texts);
  texts.erase(kTemplate);
  OrderedJson json = parsed(texts, kConfig);
  if (json.empty()) {  // a learned tokenizer has nothing but its tokenizer.json
    json["tokenizer_class"] = "PreTrainedTokenizerFast";
    json["clean_up_tokenization_spaces"] = false;
    json["model_input_names"] = OrderedJson::array({"input_ids", "attention_mask"});  // decoders take no token types
    json["pad_token"] = tokenizer.end_of_text_name();
  }
  if (!json.contains("eos_token") || json["eos_token"].is_null()) json["eos_token"] = format.end;
  json["chat_template"] = format.text;
  texts[kConfig] = base::pretty(json) + "\n";
}

std::vector<int64_t> ids_of(const OrderedJson& json) {
  std::vector<int64_t> ids;
  for (const OrderedJson& one : json.is_array() ? json : OrderedJson::array({json}))
    if (one.is_number_integer()) ids.push_back(one.get<int64_t>());
  return ids;
}

void put_ends(std::optional<int32_t> end, const SpecialTokenIds& ends, Texts& texts) {
  const bool brought = texts.contains(kGeneration);
  OrderedJson json = parsed(texts, kGeneration);
  std::vector<int64_t> eos = json.contains("eos_token_id") ? ids_of(json["eos_token_id"]) : ends.eos;
  const bool known = !end || std::ranges::find(eos, *end) != eos.end();
  if (known && brought) return;
  if (!known) eos.insert(eos.begin(), *end);
  json.erase("_from_model_config");  // it now says more than config.json
  if (!brought && ends.bos) json["bos_token_id"] = *ends.bos;
  if (eos.size() == 1) json["eos_token_id"] = eos[0];
  if (eos.size() > 1) json["eos_token_id"] = eos;
  if (!brought && (ends.pad || !ends.eos.empty())) json["pad_token_id"] = ends.pad ? *ends.pad : ends.eos.back();
  texts[kGeneration] = base::pretty(json) + "\n";
}

}  // namespace

void put_chat_files(const ChatFormat& format, const Tokenizer& tokenizer, const SpecialTokenIds& ends, Texts& texts) {
  put_template(format, tokenizer, texts);
  put_ends(end_of_answer(format, tokenizer), ends, texts);
}

}  // namespace cairn::data
