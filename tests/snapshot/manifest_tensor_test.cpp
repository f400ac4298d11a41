#include "snapshot/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

std::string refusal_of_manifest(const std::string& text) {
  try {
    parse_manifest(text, "dir/manifest.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
    return error.what();
  }
  return "accepted";
}

std::string with_files(const std::string& files) {
  return R"({"format":"cairn-snapshot","format_version":1,"cairn_version":"0.1.0","step":5,"files":)" + files + "}";
}

TEST(Manifest, IsReadBackAsItWasWritten) {
  const Manifest manifest{
      .step = 5, .version = "0.1.0", .files = {{"model.safetensors", {12, 0xfedcba9876543210}}, {"training/state.json", {0, 1}}}};
  EXPECT_EQ(parse_manifest(format_manifest(manifest), "m"), manifest);
}

TEST(Manifest, RefusesEveryLieByName) {
  EXPECT_THAT(refusal_of_manifest(""), HasSubstr("dir/manifest.json: it is empty"));
  EXPECT_THAT(refusal_of_manifest("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal_of_manifest(std::string(100'000, '[')), HasSubstr("nested more than 8 deep"));
  EXPECT_THAT(refusal_of_manifest(R"({"format":"zip"})"), HasSubstr("not the manifest of a Cairn snapshot"));
  EXPECT_THAT(refusal_of_manifest(R"({"format":7})"), HasSubstr("no format that can be read"));
  EXPECT_THAT(refusal_of_manifest(R"({"format":"cairn-snapshot","format_version":3})"),
              HasSubstr("format version 3, this Cairn reads 1 and 2"));
  EXPECT_THAT(refusal_of_manifest(R"({"format":"cairn-snapshot","format_version":1,"step":-1})"), HasSubstr("no step that can be read"));
  EXPECT_THAT(refusal_of_manifest(with_files("3")), HasSubstr("no files that can be read"));
  EXPECT_THAT(refusal_of_manifest(with_files(R"({"../x":{"bytes":1,"xxh3":"0000000000000001"}})")),
              HasSubstr("a file name that no snapshot has"));
  EXPECT_THAT(refusal_of_manifest(with_files(R"({"a":1})")), HasSubstr("nothing is said about a"));
  EXPECT_THAT(refusal_of_manifest(with_files(R"({"a":{"bytes":-1,"xxh3":"0000000000000001"}})")), HasSubstr("no bytes that can be read"));
  EXPECT_THAT(refusal_of_manifest(with_files(R"({"a":{"bytes":1,"xxh3":"1"}})")), HasSubstr("the xxh3 of a is not 16 hex digits"));
  EXPECT_THAT(refusal_of_manifest(with_files(R"({"a":{"bytes":1,"xxh3":"00000000000000zz"}})")),
              HasSubstr("the xxh3 of a is not 16 hex digits"));
}

TEST(Manifest, NamesSectionsByFile) {
  EXPECT_EQ(file_of_section("model"), "model.safetensors");
  EXPECT_EQ(file_of_section("optimizer"), "training/optimizer.safetensors");
  EXPECT_EQ(section_of_file("training/optimizer.safetensors"), "optimizer");
  EXPECT_EQ(section_of_file("model.safetensors"), "model");
  EXPECT_EQ(section_of_file("other.safetensors"), "");
  EXPECT_EQ(section_of_file("training/state.json"), "");
}

}  // namespace
}  // namespace cairn::snapshot
