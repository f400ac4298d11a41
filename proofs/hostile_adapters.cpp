// Bad inputs: adapters in PEFT's format.
#include <limits>

#include "hostile_cases.h"

namespace cairn::study {
namespace {

std::vector<std::string> merging() { return {"snapshot", "merge", "m", "--adapter", "a", "--out", "x"}; }

HostileCase adapter(const std::string& name, const std::function<void(const HostileFolder&)>& spoil, std::vector<std::string> said) {
  return {"adapter", name, merging(),
          [spoil](const HostileFolder& in) {
            in.good("model", "m");
            in.good("adapter", "a");
            spoil(in);
          },
          std::move(said)};
}

HostileCase adapter_config(const std::string& name, const std::string& from, const std::string& to, std::vector<std::string> said) {
  said.push_back("adapter_config.json");
  return adapter(
      name, [from, to](const HostileFolder& in) { in.replace("a/adapter_config.json", from, to); }, std::move(said));
}

HostileCase adapter_text(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("adapter_config.json");
  return adapter(
      name, [bytes](const HostileFolder& in) { in.file("a/adapter_config.json", bytes); }, std::move(said));
}

HostileCase adapter_tensors(const std::string& name, const std::vector<RawTensor>& tensors, std::vector<std::string> said) {
  return adapter(
      name, [tensors](const HostileFolder& in) { in.file("a/adapter_model.safetensors", safetensors_of(tensors)); }, std::move(said));
}

}  // namespace

HostileCases hostile_adapters() {
  const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.", a = layer + "lora_A.weight", b = layer + "lora_B.weight";
  const std::string elsewhere = "base_model.model.model.layers.7.self_attn.q_proj.lora_";
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const RawTensor good_a{a, "F32", "[2,8]", floats(16)}, good_b{b, "F32", "[8,2]", floats(16)};
  return {
      adapter_text("not_json", "{", {"JSON"}),
      adapter_text("empty", "", {"empty"}),
      adapter_text("a_list", "[]", {"not a JSON object"}),
      adapter_text("nothing_in_it", "{}", {"peft_type"}),
      adapter_text("a_million_deep", repeated("[", 1'000'000), {"nested"}),
      adapter_config("of_another_kind", "\"LORA\"", "\"PREFIX_TUNING\"", {"PREFIX_TUNING"}),
      adapter_config("kind_a_number", "\"LORA\"", "1", {"peft_type"}),
      adapter_config("rank_zero", "\"r\": 2", "\"r\": 0", {"r = 0"}),
      adapter_config("rank_negative", "\"r\": 2", "\"r\": -2", {"r = -2"}),
      adapter_config("rank_of_a_billion", "\"r\": 2", "\"r\": 1000000000", {"r = 1000000000"}),
      adapter_config("rank_of_2_to_64", "\"r\": 2", "\"r\": 18446744073709551615", {"r = 18446744073709551615"}),
      adapter_config("rank_a_text", "\"r\": 2", "\"r\": \"two\"", {"two"}),
      adapter_config("rank_twice", "\"r\": 2", "\"r\": 2, \"r\": 3", {"twice"}),
      adapter_config("rank_of_other_tensors", "\"r\": 2", "\"r\": 4", {"r = 4"}),
      adapter_config("alpha_missing", "\"lora_alpha\": 4,", "", {"lora_alpha"}),
      adapter_config("alpha_zero", "\"lora_alpha\": 4", "\"lora_alpha\": 0", {"lora_alpha"}),
      adapter_config("alpha_a_text", "\"lora_alpha\": 4", "\"lora_alpha\": \"big\"", {"lora_alpha"}),
      adapter_config("alpha_beyond_a_double", "\"lora_alpha\": 4", "\"lora_alpha\": 1e999", {"number"}),
      adapter_config("targets_of_numbers", "[\"q_proj\"]", "[1]", {"target_modules"}),
      adapter_config("targets_a_pattern", "[\"q_proj\"]", "\".*\"", {"target_modules"}),
      adapter_config("dora", "\"use_dora\": false", "\"use_dora\": true", {"use_dora"}),
      adapter_config("biases", "\"bias\": \"none\"", "\"bias\": \"all\"", {"bias"}),
      adapter_config("dropout_a_text", "\"lora_dropout\": 0.0", "\"lora_dropout\": \"much\"", {"lora_dropout"}),
      adapter("nothing_there", [](const HostileFolder& in) { in.remove("a"); }, {"a/adapter_config.json"}),
      adapter("no_tensors_there", [](const HostileFolder& in) { in.remove("a/adapter_model.safetensors"); }, {"adapter_model.safetensors"}),
      adapter("tensors_cut_off", [](const HostileFolder& in) { in.cut("a/adapter_model.safetensors", 200); },
              {"adapter_model.safetensors"}),
      adapter("config_is_a_pipe", [](const HostileFolder& in) { in.pipe("a/adapter_config.json"); }, {"adapter_config.json"}),
      adapter_tensors("no_tensors", {}, {"adapter_model.safetensors", "no tensors"}),
      adapter_tensors("only_a", {good_a}, {"no lora_B"}),
      adapter_tensors("only_b", {good_b}, {"no lora_A"}),
      adapter_tensors("of_another_layer",
                      {{elsewhere + "A.weight", "F32", "[2,8]", floats(16)}, {elsewhere + "B.weight", "F32", "[8,2]", floats(16)}},
                      {"layers.7", "does not have"}),
      adapter_tensors("of_another_width", {{a, "F32", "[2,16]", floats(32)}, good_b}, {"does not fit"}),
      adapter_tensors("of_three_dims", {{a, "F32", "[2,8,1]", floats(16)}, good_b}, {"[2, 8, 1]"}),
      adapter_tensors("of_int32", {{a, "I32", "[2,8]", floats(16)}, good_b}, {"floating-point"}),
      adapter_tensors("of_nan", {{a, "F32", "[2,8]", floats(16, kNan)}, good_b}, {"not finite"}),
      adapter_tensors("of_a_foreign_name", {{"lora_A", "F32", "[2,8]", floats(16)}, good_b}, {"lora_A"}),
      {"adapter",
       "cut_off_for_training",
       {"train", "--set", "model.from=m", "--set", "model.lora.from=a", "--out", "x"},
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.good("adapter", "a");
         in.cut("a/adapter_model.safetensors", 200);
       },
       {"adapter_model.safetensors"}},
      {"adapter",
       "export_of_none",
       {"snapshot", "export", "m", "--adapter", "--out", "x"},
       [](const HostileFolder& in) { in.good("model", "m"); },
       {"no adapter"}},
  };
}

}  // namespace cairn::study
