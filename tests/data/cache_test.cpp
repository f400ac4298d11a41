#include "data/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Shelf {
  Scratch scratch;
  base::Log log = base::Log::capture();
  Cache cache{scratch.path("cache"), log};
  std::string file() const { return cache.path("tokens", 7); }
  void overwrite(const std::string& bytes) const { std::ofstream(file(), std::ios::binary) << bytes; }
};

TEST(Cache, GivesBackWhatWasPut) {
  Shelf shelf;
  EXPECT_EQ(shelf.cache.get("tokens", 7), std::nullopt);
  const std::string bytes("a\0b", 3);
  shelf.cache.put("tokens", 7, bytes);
  EXPECT_EQ(shelf.cache.get("tokens", 7), bytes);
  EXPECT_EQ(shelf.cache.get("tokens", 8), std::nullopt);
  EXPECT_EQ(shelf.cache.get("tokenizer", 7), std::nullopt);
  shelf.cache.put("tokens", 7, "");
  EXPECT_EQ(shelf.cache.get("tokens", 7), "");
  EXPECT_TRUE(shelf.log.lines().empty());
}

TEST(Cache, IgnoresEveryDamagedEntryWithAWarning) {
  Shelf shelf;
  shelf.cache.put("tokens", 7, "some bytes of value");
  const std::string good = base::read_file(shelf.file(), 1000);
  int64_t damaged = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    shelf.overwrite(bad);
    EXPECT_EQ(shelf.cache.get("tokens", 7), std::nullopt) << "byte " << i;
    shelf.overwrite(good.substr(0, i));
    EXPECT_EQ(shelf.cache.get("tokens", 7), std::nullopt) << "cut at " << i;
    damaged += 2;
  }
  ASSERT_EQ(static_cast<int64_t>(shelf.log.lines().size()), damaged);
  EXPECT_THAT(shelf.log.lines().back(), HasSubstr(shelf.file() + " is ignored and made anew: it has 18 bytes, not 19"));
  shelf.cache.put("tokens", 7, "made anew");
  EXPECT_EQ(shelf.cache.get("tokens", 7), "made anew");
}

TEST(Cache, KeepsNothingWhereItCannotWriteAndSaysSo) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const Cache cache(scratch.write("file", "in the way") + "/cache", log);
  cache.put("tokens", 7, "x");
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("cache entry is not kept: ")));
  EXPECT_EQ(cache.get("tokens", 7), std::nullopt);
}

TEST(Cache, WithoutAFolderKeepsNothingQuietly) {
  base::Log log = base::Log::capture();
  const Cache cache("", log);
  cache.put("tokens", 7, "x");
  EXPECT_EQ(cache.get("tokens", 7), std::nullopt);
  EXPECT_TRUE(log.lines().empty());
}

}  // namespace
}  // namespace cairn::data
