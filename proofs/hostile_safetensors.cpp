// Bad inputs: model.safetensors.
#include <cmath>
#include <limits>

#include "hostile_cases.h"

namespace cairn::study {
namespace {

const std::string kFile = "m/model.safetensors";

// A model whose weights file holds these bytes.
HostileCase weights(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("model.safetensors");
  return {"safetensors", name, generate_ids(),
          [bytes](const HostileFolder& in) {
            in.good("model", "m");
            in.file(kFile, bytes);
          },
          std::move(said)};
}

// A file with one tensor that is described so, and so many bytes of data.
HostileCase described(const std::string& name, const std::string& fields, int64_t bytes, std::vector<std::string> said) {
  return weights(name, safetensors_raw("{\"w\":{" + fields + "}}", std::string(static_cast<size_t>(bytes), '\0')), std::move(said));
}

// The good tensors with one of them changed.
HostileCase changed(const std::string& name, size_t which, const RawTensor& to, std::vector<std::string> said) {
  std::vector<RawTensor> tensors = good_tensors();
  if (!to.name.empty()) tensors[which].name = to.name;
  if (!to.dtype.empty()) tensors[which].dtype = to.dtype;
  if (!to.shape.empty()) tensors[which].shape = to.shape;
  if (!to.bytes.empty()) tensors[which].bytes = to.bytes;
  return weights(name, safetensors_of(tensors), std::move(said));
}

std::string length(uint64_t bytes) {
  std::string out;
  for (size_t i = 0; i < 8; ++i) out += static_cast<char>(bytes >> (8 * i));
  return out;
}

// Names of empty tensors, more than any model has.
HostileCase many_tensors(const std::string& name, int64_t count, std::vector<std::string> said) {
  return {"safetensors", name, generate_ids(),
          [count](const HostileFolder& in) {
            std::string header = "{";
            header.reserve(static_cast<size_t>(count) * 60);
            for (int64_t i = 0; i < count; ++i) {
              header += i == 0 ? "\"" : ",\"";
              header += std::to_string(i);
              header += "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
            }
            header += "}";
            in.good("model", "m");
            in.file(kFile, length(header.size()) + header);
          },
          std::move(said)};
}

HostileCases headers() {
  return {
      weights("empty", "", {"0 bytes is too short"}),
      weights("seven_bytes", "1234567", {"7 bytes is too short"}),
      weights("header_length_zero", length(0) + "{}", {"header"}),
      weights("header_length_beyond_file", length(1000) + "{}", {"header length 1000", "2 bytes"}),
      weights("header_length_4_gb", length(uint64_t{1} << 32) + "{}", {"header length 4294967296", "limit"}),
      weights("header_length_all_ones", length(~uint64_t{0}) + "{}", {"header length", "limit"}),
      weights("header_not_json", safetensors_raw("this is not JSON", ""), {"not JSON"}),
      weights("header_cut_off", safetensors_raw("{\"w\":{\"dtype\":\"F32\"", ""), {"JSON"}),
      weights("header_is_a_list", safetensors_raw("[1,2,3]", ""), {"a list"}),
      weights("header_is_null", safetensors_raw("null", ""), {"a null"}),
      weights("header_is_blank", safetensors_raw(std::string(64, ' '), ""), {"JSON"}),
      weights("header_ends_in_garbage", safetensors_raw("{}garbage", ""), {"JSON"}),
      weights("header_padded_with_nuls", safetensors_raw("{}" + std::string(6, '\0'), ""), {"NUL"}),
      weights("header_invalid_utf8", safetensors_raw("{\"\xff\xfe\":{}}", ""), {"JSON"}),
      weights("header_lists_a_million_deep", safetensors_raw("{\"w\":{\"shape\":" + repeated("[", 1'000'000), ""), {"a list"}),
      weights("header_objects_a_million_deep", safetensors_raw(repeated("{\"w\":", 1'000'000), ""), {"unknown key"}),
      weights("header_oversized", safetensors_raw(repeated(" ", 33 << 20), ""), {"header length", "limit"}),
      weights("header_of_30_mb_of_metadata", safetensors_raw("{\"__metadata__\":{" + repeated("\"\":\"\",", 4'000'000) + "}}", ""),
              {"header"}),
      weights("header_of_one_long_string", safetensors_raw("{\"" + repeated("x", 30 << 20) + "\":{}}", ""), {"string of 30.0 MiB"}),
      weights("header_of_an_endless_number", safetensors_raw("{\"w\":{\"shape\":[" + repeated("1", 20 << 20), ""), {"number"}),
      many_tensors("header_of_half_a_million_tensors", 500'000, {"model.safetensors"}),
      weights("header_is_html", "<!DOCTYPE html><html><body>Sign in to download this file</body></html>", {"header length"}),
      weights("header_is_a_git_lfs_pointer",
              "version https://git-lfs.github.com/spec/v1\noid "
              "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 1\n",
              {"header length"}),
      weights("a_pickle", std::string("PK\x03\x04") + std::string(200, 'x'), {"header length"}),
      weights("metadata_is_a_list", safetensors_raw("{\"__metadata__\":[]}", ""), {"a list"}),
      weights("metadata_of_numbers", safetensors_raw("{\"__metadata__\":{\"a\":1}}", ""), {"the number 1"}),
      weights("no_tensors", safetensors_raw("{}", ""), {"missing: model.embed_tokens.weight"}),
  };
}

HostileCases descriptions() {
  const std::string f32 = "\"dtype\":\"F32\",";
  return {
      described("tensor_without_dtype", "\"shape\":[1],\"data_offsets\":[0,4]", 4, {"dtype is missing"}),
      described("tensor_without_shape", f32 + "\"data_offsets\":[0,4]", 4, {"shape is missing"}),
      described("tensor_without_offsets", f32 + "\"shape\":[1]", 4, {"data_offsets is missing"}),
      described("dtype_unknown", "\"dtype\":\"F13\",\"shape\":[1],\"data_offsets\":[0,4]", 4, {"F13", "F32"}),
      described("dtype_a_number", "\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]", 4, {"the number 32"}),
      described("dtype_twice", f32 + f32 + "\"shape\":[1],\"data_offsets\":[0,4]", 4, {"given twice"}),
      described("shape_negative", f32 + "\"shape\":[-1],\"data_offsets\":[0,4]", 4, {"negative number -1"}),
      described("shape_fraction", f32 + "\"shape\":[1.5],\"data_offsets\":[0,4]", 4, {"1.5"}),
      described("shape_text", f32 + "\"shape\":\"[1]\",\"data_offsets\":[0,4]", 4, {"text"}),
      described("shape_huge", f32 + "\"shape\":[1099511627776],\"data_offsets\":[0,4]", 4, {"1099511627776"}),
      described("shape_product_overflows", f32 + "\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,4]", 4,
                {"larger than any memory"}),
      described("shape_overflows_to_the_right_size", f32 + "\"shape\":[4611686018427387905],\"data_offsets\":[0,4]", 4,
                {"larger than any memory"}),
      described("shape_of_2_to_64", f32 + "\"shape\":[18446744073709551616],\"data_offsets\":[0,4]", 4, {"number"}),
      described("shape_of_many_dims", f32 + "\"shape\":[1" + copies(",1", 100) + "],\"data_offsets\":[0,4]", 4, {"too many numbers"}),
      described("shape_against_offsets", f32 + "\"shape\":[3],\"data_offsets\":[0,4]", 4, {"4 bytes", "12 bytes"}),
      described("offsets_reversed", f32 + "\"shape\":[1],\"data_offsets\":[4,0]", 4, {"backwards"}),
      described("offsets_beyond_file", f32 + "\"shape\":[2],\"data_offsets\":[0,8]", 4, {"beyond the file"}),
      described("offsets_negative", f32 + "\"shape\":[1],\"data_offsets\":[-4,0]", 4, {"negative"}),
      described("offsets_fractions", f32 + "\"shape\":[1],\"data_offsets\":[0.0,4.0]", 4, {"number"}),
      described("offsets_overflow", f32 + "\"shape\":[1],\"data_offsets\":[18446744073709551612,18446744073709551615]", 4, {"beyond"}),
      described("offsets_of_three", f32 + "\"shape\":[1],\"data_offsets\":[0,2,4]", 4, {"too many numbers"}),
      described("a_gap_before", f32 + "\"shape\":[1],\"data_offsets\":[4,8]", 8, {"belong to no tensor"}),
      described("bytes_at_the_end", f32 + "\"shape\":[1],\"data_offsets\":[0,4]", 1000, {"at the end belong to no tensor"}),
      described("unknown_key", f32 + "\"shape\":[1],\"data_offsets\":[0,4],\"strides\":[1]", 4, {"strides"}),
      weights("overlapping_tensors",
              safetensors_raw("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
                              "offsets\":[2,6]}}",
                              "123456"),
              {"overlap"}),
      weights("same_name_twice",
              safetensors_raw("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
                              "offsets\":[1,2]}}",
                              "12"),
              {"named twice"}),
  };
}

HostileCases contents() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  std::vector<RawTensor> fewer = good_tensors(), more = good_tensors();
  fewer.erase(fewer.begin() + 4);
  more.push_back({"model.layers.1.self_attn.q_proj.weight", "F32", "[8,8]", floats(64)});
  const std::string whole = safetensors_of(good_tensors()).text();
  return {
      weights("cut_in_half", whole.substr(0, whole.size() / 2), {"beyond the file"}),
      weights("one_byte_short", whole.substr(0, whole.size() - 1), {"beyond the file"}),
      weights("one_byte_more", whole + "x", {"belong to no tensor"}),
      weights("a_tensor_missing", safetensors_of(fewer), {"missing: model.layers.0.self_attn.v_proj.weight"}),
      weights("a_tensor_too_many", safetensors_of(more), {"unexpected", "model.layers.1"}),
      changed("weights_of_int32", 2, {"", "I32", "", ""}, {"q_proj", "I32", "floating-point"}),
      changed("weights_of_bool", 1, {"", "BOOL", "[32]", ""}, {"input_layernorm"}),
      changed("wrong_shape", 2, {"", "", "[4,16]", ""}, {"[4, 16] there, [8, 8] here"}),
      changed("vocabulary_of_another_size", 0, {"", "", "[100,8]", floats(800)}, {"[100, 8] there, [257, 8] here"}),
      changed("blank_name", 4, {" ", "", "", ""}, {"v_proj"}),
      changed("name_of_control_characters", 4, {"\\u001b[2J\\u0000", "", "", ""}, {"v_proj"}),
      changed("name_of_a_megabyte", 4, {copies("n", 1 << 20), "", "", ""}, {"v_proj"}),
      changed("nothing_but_nan", 2, {"", "", "", floats(64, kNan)}, {"q_proj", "not finite"}),
      changed("an_infinity", 5, {"", "", "", floats(64, kInfinity)}, {"o_proj", "not finite"}),
      changed("fp16_of_infinities", 5, {"", "F16", "", copies(std::string("\x00\x7c", 2), 64)}, {"o_proj", "not finite"}),
  };
}

// The same readers through the other commands that open a model.
HostileCases other_commands() {
  const auto with = [](const std::string& name, std::vector<std::string> arguments, std::vector<std::string> said) {
    return HostileCase{"safetensors", name, std::move(arguments),
                       [](const HostileFolder& in) {
                         in.good("model", "m");
                         in.cut("m/model.safetensors", 5000);
                       },
                       std::move(said)};
  };
  return {with("cut_for_export", {"snapshot", "export", "m", "--out", "x"}, {"m/model.safetensors", "beyond the file"}),
          with("cut_for_merge", {"snapshot", "merge", "m", "--adapter", "m", "--out", "x"}, {"m/model.safetensors", "beyond the file"}),
          with("cut_for_training", {"train", "--set", "model.from=m", "--out", "x"}, {"m/model.safetensors", "beyond the file"}),
          with("cut_for_chat", {"chat", "m"}, {"m/model.safetensors", "beyond the file"}),
          with("cut_for_logits", {"logits", "m", "--ids", "1"}, {"m/model.safetensors", "beyond the file"})};
}

}  // namespace

HostileCases hostile_safetensors() {
  HostileCases all;
  for (const HostileCases& part : {headers(), descriptions(), contents(), other_commands()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace cairn::study
