#include "kernels/product_choices.h"

#include <fstream>

#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::kernels {
namespace {

TEST(ProductChoices, AreFoundAgainByTheNextProgram) {
  const harness::ScratchFolder scratch;
  const std::filesystem::path file = scratch / "deep" / "choices.json";
  const ProductChoices::Algorithm one{1, 2, 3, 0xffffffffffffffffU, 5, 6, 7, 8}, two{9};
  ProductChoices first(file), second(file);  // two programs that began at the same time
  EXPECT_FALSE(first.find("a"));
  first.keep("a", one);
  second.keep("b", two);
  EXPECT_EQ(first.find("a"), one);
  EXPECT_FALSE(first.find("b"));
  const ProductChoices later(file);
  EXPECT_EQ(later.find("a"), one);
  EXPECT_EQ(later.find("b"), two);
}

TEST(ProductChoices, AFileThatIsNoneIsAnEmptyOne) {
  const harness::ScratchFolder scratch;
  for (const char* text : {"", "{", "[1]", "{\"a\": 3}", "{\"a\": \"12\"}", "{\"a\": \"zz00000000000000\"}"}) {
    std::ofstream(scratch / "bad.json") << text;
    ProductChoices choices(scratch / "bad.json");
    EXPECT_FALSE(choices.find("a")) << text;
    choices.keep("a", {1});
    EXPECT_TRUE(ProductChoices(scratch / "bad.json").find("a")) << text;
  }
  ProductChoices nowhere("/proc/none/choices.json"), unkept("");
  nowhere.keep("a", {1});
  unkept.keep("a", {1});
  EXPECT_TRUE(nowhere.find("a") && unkept.find("a"));
}

}  // namespace
}  // namespace cairn::kernels
