// Bad inputs: model directories whose files are missing, no files, or named by a sharded index that lies.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

using Make = std::function<void(const HostileFolder&)>;

HostileCase spoiled(const std::string& name, const Make& spoil, std::vector<std::string> said,
                    std::vector<std::string> arguments = generate_text()) {
  return {"folder", name, std::move(arguments),
          [spoil](const HostileFolder& in) {
            in.good("model", "m");
            spoil(in);
          },
          std::move(said)};
}

// A model in two shards with this index.
HostileCase sharded(const std::string& name, const Bytes& text, std::vector<std::string> said) {
  said.push_back("index.json");
  return {"index", name, generate_ids(),
          [text](const HostileFolder& in) {
            in.good("model", "m");
            in.remove("m/model.safetensors");
            std::vector<RawTensor> tensors = good_tensors();
            const std::vector<RawTensor> first(tensors.begin(), tensors.begin() + 6), second(tensors.begin() + 6, tensors.end());
            in.file("m/model-1.safetensors", safetensors_of(first));
            in.file("m/model-2.safetensors", safetensors_of(second));
            in.file("secret.safetensors", safetensors_of(second));
            in.file("m/model.safetensors.index.json", text);
          },
          std::move(said)};
}

// The index of those shards, with one tensor said to be elsewhere.
std::string index_text(const std::string& moved = "", const std::string& to = "") {
  std::string text = "{\"metadata\": {}, \"weight_map\": {";
  const std::vector<RawTensor> tensors = good_tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string file = tensors[i].name == moved ? to : i < 6 ? "model-1.safetensors" : "model-2.safetensors";
    text += (i == 0 ? "\"" : ", \"") + tensors[i].name + "\": \"" + file + "\"";
  }
  return text + "}}";
}

Bytes large_index() { return "{\"weight_map\": {" + repeated("\"a\":\"a.safetensors\",", 1'000'000) + "}}"; }

HostileCases indices() {
  const std::string norm = "model.norm.weight";
  return {
      sharded("not_json", "{", {"JSON"}),
      sharded("empty", "", {"empty"}),
      sharded("a_list", "[]", {"not a JSON object"}),
      sharded("a_million_deep", repeated("[", 1'000'000), {"nested"}),
      sharded("no_weight_map", "{\"metadata\": {}}", {"weight_map"}),
      sharded("weight_map_a_list", "{\"weight_map\": []}", {"weight_map"}),
      sharded("weight_map_empty", "{\"weight_map\": {}}", {"empty"}),
      sharded("weight_map_of_numbers", "{\"weight_map\": {\"a\": 1}}", {"not a file name"}),
      sharded("weight_map_of_a_million", large_index(), {"memory"}),
      sharded("same_key_twice", "{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"y.safetensors\"}}", {"twice"}),
      sharded("path_up", index_text(norm, "../secret.safetensors"), {"../secret.safetensors", "beside the index"}),
      sharded("path_absolute", index_text(norm, "/etc/passwd"), {"/etc/passwd", "beside the index"}),
      sharded("path_into_a_folder", index_text(norm, "sub/model.safetensors"), {"beside the index"}),
      sharded("path_with_dots_inside", index_text(norm, "x/../../secret.safetensors"), {"beside the index"}),
      sharded("path_hidden", index_text(norm, ".hidden.safetensors"), {"beside the index"}),
      sharded("path_empty", index_text(norm, ""), {"beside the index"}),
      sharded("path_with_backslashes", index_text(norm, "..\\\\secret.safetensors"), {"beside the index"}),
      sharded("path_with_a_nul", index_text(norm, "model-2.safetensors\\u0000"), {"beside the index"}),
      sharded("path_to_a_pickle", index_text(norm, "pytorch_model.bin"), {"beside the index"}),
      sharded("a_shard_missing", index_text(norm, "model-3.safetensors"), {"model-3.safetensors", "missing"}),
      sharded("a_tensor_in_another_shard", index_text(norm, "model-1.safetensors"), {norm, "model-1.safetensors"}),
      sharded("a_tensor_in_no_shard", index_text().replace(index_text().find(norm), norm.size(), "model.nrom.weight"),
              {"model.nrom.weight"}),
      {"index",
       "two_shards_with_one_tensor",
       generate_ids(),
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.remove("m/model.safetensors");
         in.file("m/model-1.safetensors", safetensors_of(good_tensors()));
         in.file("m/model-2.safetensors", safetensors_of(good_tensors()));
         in.file("m/model.safetensors.index.json", index_text());
       },
       {"model-2.safetensors", "is also in"}},
      {"index",
       "a_shard_is_a_folder",
       generate_ids(),
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.remove("m/model.safetensors");
         in.folder("m/model-1.safetensors");
         in.folder("m/model-2.safetensors");
         in.file("m/model.safetensors.index.json", index_text());
       },
       {"model-1.safetensors", "not a regular file"}},
      {"index",
       "a_shard_is_a_pipe",
       generate_ids(),
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.remove("m/model.safetensors");
         in.pipe("m/model-1.safetensors");
         in.file("m/model.safetensors.index.json", index_text());
       },
       {"model-1.safetensors", "not a regular file"}},
      {"index",
       "a_shard_links_to_itself",
       generate_ids(),
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.remove("m/model.safetensors");
         in.link("m/model-1.safetensors", "model-1.safetensors");
         in.file("m/model.safetensors.index.json", index_text());
       },
       {"model-1.safetensors"}},
  };
}

HostileCases folders() {
  return {
      spoiled("nothing_there", [](const HostileFolder& in) { in.remove("m"); }, {"m", "no such directory"}),
      spoiled("empty", [](const HostileFolder& in) { in.remove("m"), in.folder("m"); }, {"no config.json"}),
      spoiled("a_file_instead", [](const HostileFolder& in) { in.remove("m"), in.file("m", "x"); }, {"no directory"}),
      spoiled("a_link_to_itself", [](const HostileFolder& in) { in.remove("m"), in.link("m", "m"); }, {"m"}),
      spoiled("no_weights", [](const HostileFolder& in) { in.remove("m/model.safetensors"); }, {"no model.safetensors"}),
      spoiled("only_a_pickle", [](const HostileFolder& in) { in.remove("m/model.safetensors"), in.file("m/pytorch_model.bin", "x"); },
              {"pickle"}),
      spoiled("weights_are_a_folder", [](const HostileFolder& in) { in.remove("m/model.safetensors"), in.folder("m/model.safetensors"); },
              {"model.safetensors", "not a regular file"}),
      spoiled("weights_are_a_pipe", [](const HostileFolder& in) { in.pipe("m/model.safetensors"); },
              {"model.safetensors", "not a regular file"}),
      spoiled("weights_are_endless", [](const HostileFolder& in) { in.link("m/model.safetensors", "/dev/zero"); },
              {"model.safetensors", "not a regular file"}),
      spoiled("weights_link_to_themselves", [](const HostileFolder& in) { in.link("m/model.safetensors", "model.safetensors"); },
              {"model.safetensors"}),
      spoiled("weights_link_nowhere", [](const HostileFolder& in) { in.link("m/model.safetensors", "gone"); },
              {"model.safetensors", "missing"}),
      spoiled("weights_of_a_terabyte_of_nothing", [](const HostileFolder& in) { in.sparse("m/model.safetensors", "", int64_t{1} << 40); },
              {"model.safetensors"}),
      spoiled("config_is_a_folder", [](const HostileFolder& in) { in.remove("m/config.json"), in.folder("m/config.json"); },
              {"config.json", "folder"}),
      spoiled("config_is_a_pipe", [](const HostileFolder& in) { in.pipe("m/config.json"); }, {"config.json", "not a regular file"}),
      spoiled("config_is_endless", [](const HostileFolder& in) { in.link("m/config.json", "/dev/zero"); },
              {"config.json", "not a regular file"}),
      spoiled("config_links_to_itself", [](const HostileFolder& in) { in.link("m/config.json", "config.json"); }, {"config.json"}),
      spoiled("tokenizer_is_a_pipe", [](const HostileFolder& in) { in.pipe("m/tokenizer.json"); },
              {"tokenizer.json", "not a regular file"}),
      spoiled("tokenizer_links_to_itself", [](const HostileFolder& in) { in.link("m/tokenizer.json", "tokenizer.json"); },
              {"tokenizer.json"}),
      spoiled("generation_config_is_a_pipe", [](const HostileFolder& in) { in.pipe("m/generation_config.json"); },
              {"generation_config.json", "not a regular file"}),
      spoiled("a_name_too_long", [](const HostileFolder&) {}, {"no such directory"}, {"generate", std::string(5000, 'x')}),
      spoiled("export_onto_itself", [](const HostileFolder&) {}, {"something already"}, {"snapshot", "export", "m", "--out", "m"}),
      spoiled("training_from_nothing", [](const HostileFolder&) {}, {"no such directory"},
              {"train", "--set", "model.from=gone", "--out", "x"}),
      spoiled("tokenizer_cut_and_exported", [](const HostileFolder& in) { in.cut("m/tokenizer.json", 300); }, {"tokenizer.json"},
              {"snapshot", "export", "m", "--out", "x"}),
  };
}

}  // namespace

HostileCases hostile_folders() {
  HostileCases all = folders();
  for (HostileCase& one : indices()) all.push_back(std::move(one));
  return all;
}

}  // namespace cairn::study
