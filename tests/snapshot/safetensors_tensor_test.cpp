#include "snapshot/safetensors.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "kernels/aten.h"
#include "snapshot/scratch_folder.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

TEST(Safetensors, GivesBackEveryDtypeShapeAndStride) {
  const ScratchFolder scratch;
  mesh::NamedTensors tensors;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    tensors.push_back({std::string("n") + c10::toString(dtype), at::arange(-3, 4).to(dtype)});
  }
  tensors.push_back({"bool", at::tensor({1, 0, 1}).to(at::kBool)});
  tensors.push_back({"transposed", at::arange(35, at::kFloat).view({5, 7}).t()});
  tensors.push_back({"sliced", at::arange(100, at::kFloat).slice(0, 3, 90, 7)});
  tensors.push_back({"scalar", at::scalar_tensor(2.5)});
  tensors.push_back({"nothing", at::empty({3, 0, 2})});
  tensors.push_back({"gradient", at::ones({2}).requires_grad_()});
  const FileRecord written = write_safetensors(scratch / "x.safetensors", tensors, base::real_disk());
  EXPECT_EQ(written.bytes, safetensors_bytes(tensors));
  EXPECT_EQ(written.bytes, static_cast<int64_t>(std::filesystem::file_size(scratch / "x.safetensors")));
  EXPECT_EQ(written.checksum, base::checksum(base::read_file(scratch / "x.safetensors", 1 << 20)));

  const Safetensors file(scratch / "x.safetensors");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_NE(file.find(name), nullptr) << name;
    const at::Tensor read = file.view(*file.find(name));
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read, tensor)) << name;
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, WritesTheBytesOfTheFormat) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "x", {{"w", at::tensor({1.0f, -2.0f})}}, base::real_disk());
  const std::string json = R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string padding((8 - json.size() % 8) % 8, ' ');
  const auto length = static_cast<char>(json.size() + padding.size());
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  EXPECT_EQ(base::read_file(scratch / "x", 1000), std::string(1, length) + std::string(7, '\0') + json + padding + data);
}

TEST(Safetensors, HoldsNoTensorsToo) {
  const ScratchFolder scratch;
  const FileRecord written = write_safetensors(scratch / "x", {}, base::real_disk());
  EXPECT_EQ(written.bytes, safetensors_bytes({}));
  EXPECT_TRUE(Safetensors(scratch / "x").entries().empty());
}

TEST(Safetensors, KeepsTheMapAliveAsLongAsAView) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "x", {{"w", at::arange(1000)}}, base::real_disk());
  at::Tensor view;
  {
    const Safetensors file(scratch / "x");
    view = file.view(*file.find("w"));
  }
  std::filesystem::remove(scratch / "x");
  EXPECT_EQ(view.sum().item<int64_t>(), 499500);
}

TEST(Safetensors, CopiesWhatLiesAtAnOddAddress) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "x", {{"a", at::ones({3}, at::kByte)}, {"b", at::arange(4, at::kFloat)}}, base::real_disk());
  const Safetensors file(scratch / "x");
  const at::Tensor b = file.view(*file.find("b"));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.const_data_ptr()) % 4, 0);
  EXPECT_TRUE(at::equal(b, at::arange(4, at::kFloat)));
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
    return error.what();
  }
  return "accepted";
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const ScratchFolder scratch;
  EXPECT_THAT(refusal([&] { Safetensors(scratch / "absent"); }), HasSubstr("absent: missing"));
  EXPECT_THAT(refusal([&] { Safetensors(scratch / "."); }), HasSubstr("not a regular file"));
  std::ofstream(scratch / "empty").close();
  EXPECT_THAT(refusal([&] { Safetensors(scratch / "empty"); }), HasSubstr("empty: 0 bytes is too short"));
}

TEST(Safetensors, RefusesATruthValueThatIsNone) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "x", {{"mask", at::tensor({1, 1}).to(at::kBool)}}, base::real_disk());
  std::string bytes = base::read_file(scratch / "x", 1000);
  bytes.back() = 7;
  base::write_atomically(scratch / "x", bytes);
  const Safetensors file(scratch / "x");
  EXPECT_THAT(refusal([&] { file.view(*file.find("mask")); }), HasSubstr("tensor \"mask\": a BOOL is neither 0 nor 1"));
}

}  // namespace
}  // namespace cairn::snapshot
