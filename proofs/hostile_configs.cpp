// Bad inputs: config.json and generation_config.json.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

// A good model whose config.json says something else in one place.
HostileCase config(const std::string& name, const std::string& from, const std::string& to, std::vector<std::string> said) {
  said.push_back("config.json");
  return {"config", name, generate_ids(),
          [from, to](const HostileFolder& in) {
            in.good("model", "m");
            in.replace("m/config.json", from, to);
          },
          std::move(said)};
}

// A good model with another file in the place of one.
HostileCase text(const std::string& file, const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back(file);
  return {file == "config.json" ? "config" : "generation_config", name, generate_ids(),
          [file, bytes](const HostileFolder& in) {
            in.good("model", "m");
            in.file("m/" + file, bytes);
          },
          std::move(said)};
}

std::string utf16(const std::string& ascii) {
  std::string out = "\xff\xfe";
  for (const char c : ascii) out += {c, '\0'};
  return out;
}

HostileCases texts() {
  const std::string c = "config.json", good = R"({"model_type": "llama", "vocab_size": 257})";
  return {
      text(c, "empty", "", {"empty"}),
      text(c, "blank", "  \n ", {"JSON"}),
      text(c, "not_json", "model_type: llama\n", {"JSON"}),
      text(c, "cut_off", good.substr(0, 30), {"no end"}),
      text(c, "a_list", "[]", {"not a JSON object"}),
      text(c, "a_number", "7", {"not a JSON object"}),
      text(c, "null", "null", {"not a JSON object"}),
      text(c, "nothing_in_it", "{}", {"model_type is missing"}),
      text(c, "lists_a_million_deep", repeated("[", 1'000'000), {"nested"}),
      text(c, "objects_a_million_deep", repeated("{\"a\":", 500'000), {"nested"}),
      text(c, "deep_and_closed", repeated("[", 500'000) + repeated("]", 500'000), {"nested"}),
      text(c, "garbage_after", good + " and more", {"JSON"}),
      text(c, "two_of_them", good + good, {"JSON"}),
      text(c, "a_nul_after", good + std::string("\0 hidden", 8), {"NUL"}),
      text(c, "a_comment", "{\"model_type\": \"llama\" /* ours */}", {"JSON"}),
      text(c, "a_trailing_comma", "{\"model_type\": \"llama\",}", {"JSON"}),
      text(c, "single_quotes", "{'model_type': 'llama'}", {"JSON"}),
      text(c, "byte_order_mark", "\xef\xbb\xbf" + good, {"byte order mark", "UTF-8"}),
      text(c, "utf16", utf16(good), {"UTF-16"}),
      text(c, "latin_1", "{\"model_type\": \"llam\xe4\"}", {"UTF-8"}),
      text(c, "surrogate_alone", "{\"model_type\": \"\\ud800\"}", {"JSON"}),
      text(c, "control_character", "{\"model_type\": \"ll\x01ma\"}", {"JSON"}),
      text(c, "nan", "{\"model_type\": \"llama\", \"vocab_size\": NaN}", {"JSON"}),
      text(c, "infinity", "{\"model_type\": \"llama\", \"rms_norm_eps\": Infinity}", {"JSON"}),
      text(c, "number_beyond_a_double", "{\"model_type\": \"llama\", \"vocab_size\": 1e999}", {"number"}),
      text(c, "endless_number", "{\"vocab_size\": " + repeated("9", 3 << 20) + "}", {"number"}),
      text(c, "same_key_twice", R"({"model_type": "llama", "vocab_size": 1, "vocab_size": 257})", {"vocab_size", "twice"}),
      text(c, "string_without_end", "{\"model_type\": \"" + repeated("x", 1 << 20), {"no end"}),
      text(c, "of_five_megabytes", good + repeated(" ", 5 << 20), {"5.00 MiB", "at most"}),
      text(c, "an_html_page", "<html>404</html>", {"JSON"}),
      {"config",
       "of_a_gigabyte",
       generate_ids(),
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.sparse("m/config.json", "{", int64_t{1} << 30);
       },
       {"config.json", "1.00 GiB", "at most"}},
  };
}

HostileCases values() {
  const auto number = [](const std::string& key, const std::string& good, const std::string& bad, const std::string& name,
                         std::vector<std::string> said) {
    if (name.find("another_model") == std::string::npos && name != "head_dim_odd") said.push_back(key);
    return config(name, "\"" + key + "\": " + good, "\"" + key + "\": " + bad, std::move(said));
  };
  return {
      config("family_unknown", "\"llama\"", "\"mamba\"", {"mamba", "llama, mistral"}),
      config("family_a_number", "\"model_type\": \"llama\"", "\"model_type\": 7", {"model_type is 7"}),
      config("family_of_a_megabyte", "\"model_type\": \"llama\"", "\"model_type\": \"" + copies("x", 1 << 20) + "\"", {"model_type"}),
      number("vocab_size", "257", "-1", "vocab_negative", {"-1"}),
      number("vocab_size", "257", "0", "vocab_zero", {"= 0"}),
      number("vocab_size", "257", "1099511627776", "vocab_of_2_to_40", {"1099511627776"}),
      number("vocab_size", "257", "18446744073709551615", "vocab_of_2_to_64", {"18446744073709551615"}),
      number("vocab_size", "257", "257.0", "vocab_a_fraction", {"257.0"}),
      number("vocab_size", "257", "\"257\"", "vocab_a_text", {"\"257\""}),
      number("vocab_size", "257", "null", "vocab_null", {"missing"}),
      number("vocab_size", "257", "[257]", "vocab_a_list", {"[257]"}),
      number("vocab_size", "257", "16000000", "vocab_of_another_model", {"[257, 8] there, [16000000, 8] here"}),
      number("hidden_size", "8", "0", "width_zero", {"= 0"}),
      number("hidden_size", "8", "-8", "width_negative", {"-8"}),
      number("hidden_size", "8", "1000000", "width_of_another_model", {"there"}),
      number("intermediate_size", "16", "1e30", "mlp_beyond_64_bits", {"1e+30"}),
      number("intermediate_size", "16", "1048576", "mlp_of_another_model", {"there"}),
      number("num_hidden_layers", "1", "0", "layers_zero", {"= 0"}),
      number("num_hidden_layers", "1", "1000000000", "layers_of_a_billion", {"1000000000"}),
      number("num_hidden_layers", "1", "10000", "layers_of_another_model", {"10000 layers", "12 tensors"}),
      number("num_hidden_layers", "1", "true", "layers_true", {"true"}),
      number("num_attention_heads", "2", "0", "heads_zero", {"= 0"}),
      number("num_attention_heads", "2", "-2", "heads_negative", {"-2"}),
      number("num_attention_heads", "2", "4000", "heads_of_another_model", {"there"}),
      number("num_key_value_heads", "1", "0", "kv_heads_zero", {"= 0"}),
      number("num_key_value_heads", "1", "3", "kv_heads_that_do_not_divide", {"no multiple"}),
      number("head_dim", "4", "0", "head_dim_zero", {"= 0"}),
      number("head_dim", "4", "3", "head_dim_odd", {"width 3", "even"}),
      number("head_dim", "4", "4096", "head_dim_of_another_model", {"there"}),
      config("width_that_heads_do_not_divide", "\"num_attention_heads\": 2,\n  \"num_key_value_heads\": 1,\n  \"head_dim\": 4",
             "\"num_attention_heads\": 3", {"no multiple of num_attention_heads = 3"}),
      number("max_position_embeddings", "64", "0", "length_zero", {"= 0"}),
      number("max_position_embeddings", "64", "-1", "length_negative", {"-1"}),
      number("max_position_embeddings", "64", "1e300", "length_beyond_64_bits", {"1e+300"}),
      number("rms_norm_eps", "1e-05", "0", "epsilon_zero", {"= 0"}),
      number("rms_norm_eps", "1e-05", "-1e-5", "epsilon_negative", {"-1e-05"}),
      number("rms_norm_eps", "1e-05", "1e30", "epsilon_huge", {"1e+30"}),
      number("rms_norm_eps", "1e-05", "\"small\"", "epsilon_a_text", {"small"}),
      number("rope_theta", "10000.0", "0", "theta_zero", {"= 0"}),
      number("rope_theta", "10000.0", "-1", "theta_negative", {"-1"}),
      number("rope_theta", "10000.0", "\"10000\"", "theta_a_text", {"10000"}),
      number("rope_scaling", "null", "7", "rope_scaling_a_number", {"object"}),
      number("rope_scaling", "null", "{\"rope_type\": \"magic\", \"factor\": 2}", "rope_scaling_unknown", {"magic"}),
      number("rope_scaling", "null", "{\"rope_type\": [], \"factor\": 2}", "rope_scaling_type_a_list", {"[]"}),
      number("rope_scaling", "null", "{\"rope_type\": \"linear\"}", "rope_scaling_without_factor", {"factor"}),
      number("rope_scaling", "null", "{\"rope_type\": \"linear\", \"factor\": -2}", "rope_scaling_factor_negative", {"-2"}),
      number("rope_scaling", "null", "{\"rope_type\": \"linear\", \"factor\": \"two\"}", "rope_scaling_factor_a_text", {"two"}),
      number("rope_scaling", "null",
             R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, "original_max_position_embeddings": 8})",
             "rope_scaling_frequencies_reversed", {"high_freq_factor"}),
      number("rope_scaling", "null", R"({"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 1e300})",
             "rope_scaling_original_huge", {"original_max_position_embeddings"}),
      number("hidden_act", "\"silu\"", "\"relu\"", "activation_of_another_function", {"relu"}),
      number("attention_bias", "false", "\"no\"", "flag_a_text", {"no"}),
      number("tie_word_embeddings", "false", "1", "flag_a_number", {"= 1"}),
      number("bos_token_id", "256", "\"<s>\"", "bos_a_text", {"<s>"}),
      number("eos_token_id", "256", "[1, \"x\"]", "eos_a_list_with_a_text", {"token id"}),
      number("eos_token_id", "256", "{}", "eos_an_object", {"token id"}),
      config("quantized", "\"torch_dtype\"", "\"quantization_config\": {\"bits\": 4}, \"torch_dtype\"", {"quantization_config"}),
      config("code_to_be_run", "\"torch_dtype\"", "\"auto_map\": {\"AutoModel\": \"modeling.Evil\"}, \"torch_dtype\"", {"auto_map"}),
      config("experts", "\"torch_dtype\"", "\"num_local_experts\": 8, \"torch_dtype\"", {"num_local_experts"}),
      {"config",
       "layers_of_another_model_for_training",
       {"train", "--set", "model.from=m", "--out", "x"},
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.replace("m/config.json", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2");
       },
       {"missing", "model.layers.1"}},
  };
}

HostileCases generation() {
  const std::string g = "generation_config.json";
  return {text(g, "not_json", "{", {"JSON"}),
          text(g, "empty", "", {"empty"}),
          text(g, "a_list", "[1]", {"not a JSON object"}),
          text(g, "a_million_deep", repeated("[", 1'000'000), {"nested"}),
          text(g, "eos_a_text", "{\"eos_token_id\": \"</s>\"}", {"eos_token_id"}),
          text(g, "eos_negative", "{\"eos_token_id\": -1}", {"eos_token_id"}),
          text(g, "eos_an_object", "{\"eos_token_id\": {\"a\": 1}}", {"eos_token_id"}),
          text(g, "same_key_twice", "{\"eos_token_id\": 1, \"eos_token_id\": 2}", {"twice"}),
          text(g, "invalid_utf8", "{\"eos_token\": \"\xc3\x28\"}", {"UTF-8"})};
}

}  // namespace

HostileCases hostile_configs() {
  HostileCases all;
  for (const HostileCases& part : {texts(), values(), generation()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace cairn::study
