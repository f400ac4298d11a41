#include "snapshot/safetensors_header.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

std::string length_of(uint64_t bytes) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(bytes >> (8 * i));
  return out;
}

// A file with this JSON and that many bytes of data.
std::string file_with(const std::string& json, size_t data_bytes) { return length_of(json.size()) + json + std::string(data_bytes, '\0'); }

SafetensorsHeader parse(const std::string& file) { return parse_safetensors_header(std::as_bytes(std::span(file)), "dir/x.safetensors"); }

std::string refusal_of_header(const std::string& file) {
  try {
    parse(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
    return error.what();
  }
  return "accepted";
}

const std::string kGood = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[12,20]},)"
                          R"("a":{"dtype":"F32","shape":[3,1],"data_offsets":[0,12]}})";

TEST(SafetensorsHeader, GivesTensorsInTheOrderOfTheirBytes) {
  const SafetensorsHeader header = parse(file_with(kGood, 20));
  const int64_t data = 8 + static_cast<int64_t>(kGood.size());
  ASSERT_EQ(header.entries.size(), 2);
  EXPECT_EQ(header.entries[0], (TensorEntry{"a", SafetensorsDtype::f32, {3, 1}, data, data + 12}));
  EXPECT_EQ(header.entries[1], (TensorEntry{"b", SafetensorsDtype::i64, {}, data + 12, data + 20}));
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, ReadsAnEmptyFileOfNoTensors) { EXPECT_TRUE(parse(file_with("{}", 0)).entries.empty()); }

TEST(SafetensorsHeader, IsWrittenAlignedAndReadBackTheSame) {
  for (const std::string name : {"a", "ab", "abc", "model.layers.0.\"x\"\\\n\xc3\xa4"}) {
    std::vector<TensorEntry> entries{
        {name, SafetensorsDtype::bf16, {5, 7}}, {name + "2", SafetensorsDtype::boolean, {0, 4}}, {"s", SafetensorsDtype::f64, {}}};
    const std::string header = format_safetensors_header(entries, {{"format", "pt"}});
    EXPECT_EQ(header.size() % 8, 0);
    EXPECT_EQ(entries[0].end - entries[0].begin, 70);
    const SafetensorsHeader read = parse(header + std::string(78, '\0'));
    EXPECT_EQ(read.entries, entries);
  }
}

TEST(SafetensorsHeader, RefusesToWriteWhatTheFormatCannotHold) {
  const auto message = [](std::vector<TensorEntry> entries) -> std::string {
    try {
      format_safetensors_header(entries, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return error.what();
    }
    return "accepted";
  };
  const auto f32 = SafetensorsDtype::f32;
  EXPECT_THAT(message({{"w", f32, {1}}, {"w", f32, {1}}}), HasSubstr("tensor \"w\": the name is taken"));
  EXPECT_THAT(message({{"__metadata__", f32, {1}}}), HasSubstr("the name is taken"));
  EXPECT_THAT(message({{"\xff", f32, {1}}}), HasSubstr("must be UTF-8"));
}

struct Lie {
  const char* name;
  std::string file;
  const char* reason;
};

std::string tensor(const std::string& fields) { return "{\"w\":{" + fields + "}}"; }

const std::vector<Lie> kLies{
    {"too_short", "1234567", "7 bytes is too short"},
    {"header_over_limit", length_of((32 << 20) + 1) + "{}", "header length 33554433 is above the limit of 33554432"},
    {"header_length_all_ones", length_of(~uint64_t{0}) + "{}", "header length 18446744073709551615 is above the limit"},
    {"header_beyond_file", length_of(3) + "{}", "header length 3 is more than the 2 bytes the file has left"},
    {"empty_header", file_with("", 0), "it is empty"},
    {"not_json", file_with("{\"w\":", 0), "not JSON at byte 1"},
    {"bytes_after_json", file_with("{}x", 0), "not JSON at byte"},
    {"invalid_utf8", file_with("{\"\xff\xfe\":{}}", 0), "not JSON"},
    {"root_is_list", file_with("[]", 0), "a list is not what a safetensors header holds"},
    {"root_is_number", file_with("17", 0), "the number 17 is not what"},
    {"tensor_is_text", file_with(R"({"w":"F32"})", 0), "tensor \"w\": the text \"F32\" is not what"},
    {"tensor_is_null", file_with(R"({"w":null})", 0), "tensor \"w\": a null is not what"},
    {"tensor_is_list", file_with(R"({"w":[[]]})", 0), "tensor \"w\": a list is not what"},
    {"deep_nesting", file_with(R"({"w":{"shape":)" + std::string(1'000'000, '['), 0), "tensor \"w\": a list under \"shape\""},
    {"deep_objects", file_with(R"({"w":{"dtype":{"a":{"b":{}}}}})", 0), "tensor \"w\": an object under \"dtype\""},
    {"metadata_nested", file_with(R"({"__metadata__":{"a":{}}})", 0), "an object under \"a\""},
    {"metadata_number", file_with(R"({"__metadata__":{"a":1}})", 0), "the number 1 under \"a\""},
    {"metadata_twice", file_with(R"({"__metadata__":{},"__metadata__":{}})", 0), "a second __metadata__"},
    {"metadata_key_twice", file_with(R"({"__metadata__":{"a":"b","a":"c"}})", 0), "__metadata__ names \"a\" twice"},
    {"unknown_key", file_with(tensor(R"("dtype":"F32","shape":[],"data_offsets":[0,4],"stride":[1])"), 4),
     "tensor \"w\": unknown key \"stride\""},
    {"dtype_unknown", file_with(tensor(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), 4),
     "dtype \"F8_E4M3\" is not one of F64, F32"},
    {"dtype_lower_case", file_with(tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4), "dtype \"f32\" is not one of"},
    {"dtype_number", file_with(tensor(R"("dtype":32,"shape":[1],"data_offsets":[0,4])"), 4), "the number 32 under \"dtype\""},
    {"dtype_missing", file_with(tensor(R"("shape":[1],"data_offsets":[0,4])"), 4), "dtype is missing"},
    {"shape_missing", file_with(tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4), "shape is missing"},
    {"offsets_missing", file_with(tensor(R"("dtype":"F32","shape":[1])"), 4), "data_offsets is missing"},
    {"dtype_twice", file_with(tensor(R"("dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4])"), 4), "dtype is given twice"},
    {"name_twice",
     file_with(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
     "tensor \"w\": is named twice"},
    {"shape_negative", file_with(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4),
     "the negative number -1 under \"shape\""},
    {"shape_fraction", file_with(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4), "the number 1.0"},
    {"shape_not_list", file_with(tensor(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4), "the number 1 under \"shape\""},
    {"shape_too_many_dims",
     file_with(tensor("\"dtype\":\"U8\",\"shape\":[1" +
                      [] {
                        std::string s;
                        for (int i = 0; i < 64; ++i) s += ",1";
                        return s;
                      }() +
                      "],\"data_offsets\":[0,1]"),
               1),
     "shape has too many numbers"},
    {"shape_overflows", file_with(tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4),
     "shape [4294967296, 4294967296] is larger than any memory"},
    {"shape_overflows_to_small", file_with(tensor(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"), 4),
     "is larger than any memory"},
    {"dim_beyond_int64", file_with(tensor(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4])"), 4),
     "is larger than any memory"},
    {"one_offset", file_with(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4), "data_offsets must be two numbers"},
    {"three_offsets", file_with(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4), "data_offsets has too many numbers"},
    {"offsets_backwards", file_with(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4), "data_offsets [4, 0] run backwards"},
    {"offsets_beyond_file", file_with(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7),
     "data_offsets [0, 8] reach beyond the file's 7 bytes of data"},
    {"offsets_huge", file_with(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615])"), 4),
     "reach beyond"},
    {"size_differs", file_with(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
     "hold 4 bytes, but F32 of shape [2] is 8 bytes"},
    {"overlap",
     file_with(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", 4),
     "tensor \"b\": its bytes overlap those of \"a\""},
    {"same_bytes",
     file_with(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3),
     "tensor \"b\": its bytes overlap those of \"a\""},
    {"hole", file_with(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", 4),
     "tensor \"b\": 1 bytes before it belong to no tensor"},
    {"bytes_left_over", file_with(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 9),
     "5 bytes at the end belong to no tensor"},
    {"terminal_codes_in_name", file_with("{\"\\u001b[31m\":3}", 0), "tensor \"\\x1b[31m\": the number 3"},
};

class SafetensorsLie : public testing::TestWithParam<Lie> {};

TEST_P(SafetensorsLie, IsRefusedByName) {
  const std::string message = refusal_of_header(GetParam().file);
  EXPECT_THAT(message, testing::StartsWith("dir/x.safetensors: "));
  EXPECT_THAT(message, HasSubstr(GetParam().reason));
}
INSTANTIATE_TEST_SUITE_P(Table, SafetensorsLie, testing::ValuesIn(kLies), [](const auto& lie) { return std::string(lie.param.name); });

TEST(SafetensorsHeader, ShortensLongNamesInMessages) {
  EXPECT_LT(refusal_of_header(file_with("{\"" + std::string(1'000'000, 'n') + "\":3}", 0)).size(), 250);
}

// Whatever is accepted must lie inside the file; nothing may crash.
TEST(SafetensorsHeader, SurvivesTwentyThousandRandomMutations) {
  constexpr unsigned seed = 20240611;
  std::mt19937 random(seed);
  const std::string good = file_with(kGood, 20);
  const std::string spice = "{}[]\",:0123456789-eE.\\u\xff\x00 nulltruefalse";
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string file = good;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes && !file.empty(); ++c) {
      const size_t at = random() % (random() % 2 ? std::min<size_t>(file.size(), 40) : file.size());
      switch (random() % 6) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = spice[random() % spice.size()];
          break;
        case 2:
          file.erase(at, 1 + random() % 9);
          break;
        case 3:
          file.insert(at, 1, spice[random() % spice.size()]);
          break;
        case 4:
          file.resize(at);
          break;
        default:
          file.insert(at, file.substr(random() % file.size(), random() % 30));
          break;
      }
    }
    try {
      for (const TensorEntry& entry : parse(file).entries) {
        ASSERT_LE(8, entry.begin) << "mutation " << i << " of seed " << seed;
        ASSERT_LE(entry.begin, entry.end) << "mutation " << i << " of seed " << seed;
        ASSERT_LE(entry.end, static_cast<int64_t>(file.size())) << "mutation " << i << " of seed " << seed;
      }
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), Error::Kind::corrupt_file) << "mutation " << i << " of seed " << seed;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 10'000);
}

}  // namespace
}  // namespace cairn::snapshot
