#include "data/corpus/data_cache.h"

#include <csignal>
#include <filesystem>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Shelf {
  Scratch scratch;
  base::Log log = base::Log::capture();
  DataCache cache{scratch.path("cache"), log};
  std::string file() const { return cache.path("tokens", 7); }
  void overwrite(const std::string& bytes) const { std::ofstream(file(), std::ios::binary) << bytes; }
};

TEST(DataCache, GivesBackWhatWasPut) {
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

TEST(DataCache, IgnoresEveryDamagedEntryWithAWarning) {
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

TEST(DataCache, KeepsNothingWhereItCannotWriteAndSaysSo) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const DataCache cache(scratch.write("file", "in the way") + "/cache", log);
  cache.put("tokens", 7, "x");
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("cache entry is not kept: ")));
  EXPECT_EQ(cache.get("tokens", 7), std::nullopt);
}

TEST(DataCache, WithoutAFolderKeepsNothingQuietly) {
  base::Log log = base::Log::capture();
  const DataCache cache("", log);
  cache.put("tokens", 7, "x");
  EXPECT_EQ(cache.get("tokens", 7), std::nullopt);
  EXPECT_TRUE(log.lines().empty());
}

// One document of counting tokens; counts how often it is made.
struct Maker {
  int* times;
  int32_t tokens = 3;
  TokenFacts operator()(TokenWriter& writer) const {
    ++*times;
    for (int32_t i = 0; i < tokens; ++i) {
      const std::vector<int64_t> ends = {1};
      const int32_t token = i % 100;
      writer.add(std::span(&token, 1), ends, {});
    }
    return {.tokenizer = 4, .text_bytes = 5};
  }
};

TEST(DataCache, MakesTokensOnceAndMapsThem) {
  Shelf shelf;
  int times = 0;
  const DataCache::Found made = shelf.cache.tokens(7, 100, Maker{&times});
  const DataCache::Found found = shelf.cache.tokens(7, 100, Maker{&times});
  EXPECT_TRUE(made.made);
  EXPECT_FALSE(found.made);
  EXPECT_EQ(times, 1);
  EXPECT_THAT(found.tokens.narrow, ElementsAre(0, 1, 2));
  EXPECT_EQ(found.tokens.facts, (TokenFacts{.tokenizer = 4, .key = 7, .vocab = 100, .text_bytes = 5}));
  EXPECT_EQ(base::read_file(shelf.file(), 1000).substr(0, 8), "cairntk1");
  EXPECT_TRUE(shelf.cache.tokens(8, 100, Maker{&times}).made);
  EXPECT_TRUE(shelf.log.lines().empty());
}

// Whoever makes other tokens of this key (a run that began before they were finished) is not waited for.
TEST(DataCache, WaitsForNobodyWhereTheTokensAreThere) {
  Shelf shelf;
  int times = 0;
  shelf.cache.tokens(7, 100, Maker{&times});
  const std::unique_ptr<FileLock> other = shelf.cache.lock("tokens", 7);
  ASSERT_TRUE(other->held());
  EXPECT_FALSE(shelf.cache.tokens(7, 100, Maker{&times}).made);
  EXPECT_TRUE(shelf.log.lines().empty()) << shelf.log.lines().back();
}

TEST(DataCache, MakesDamagedTokensAnew) {
  Shelf shelf;
  int times = 0;
  shelf.cache.tokens(7, 100, Maker{&times});
  const std::string good = base::read_file(shelf.file(), 1000);
  std::string bad = good;
  bad[9] = 'x';
  base::write_atomically(shelf.file(), bad);
  EXPECT_TRUE(shelf.cache.tokens(7, 100, Maker{&times}).made);
  base::write_atomically(shelf.file(), good.substr(0, 60));
  EXPECT_TRUE(shelf.cache.tokens(7, 100, Maker{&times}).made);
  std::filesystem::copy_file(shelf.file(), shelf.cache.path("tokens", 8));
  EXPECT_TRUE(shelf.cache.tokens(8, 100, Maker{&times}).made);
  EXPECT_EQ(times, 4);
  EXPECT_EQ(base::read_file(shelf.file(), 1000), good);
  EXPECT_THAT(shelf.log.lines(),
              ElementsAre(HasSubstr(shelf.file() + " is ignored and made anew: " + shelf.file() + ": a damaged token file: its checksum"),
                          HasSubstr("it is cut short"), HasSubstr("it is not what its name says")));
}

TEST(DataCache, IsNotFooledByWhatAKilledProcessLeavesBehind) {
  Shelf shelf;
  std::filesystem::create_directory(shelf.scratch.path("cache"));
  const pid_t child = ::fork();
  if (child == 0) {
    shelf.cache.tokens(7, 100, [](TokenWriter& writer) -> TokenFacts {
      const std::vector<int32_t> tokens(1000, 1);
      writer.add(tokens, {}, {});
      ::kill(::getpid(), SIGKILL);
      return {};
    });
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(shelf.scratch.path("cache"))) names.push_back(entry.path().filename());
    return names;
  };
  ASSERT_THAT(files(), testing::Contains(testing::EndsWith(".part")));  // or the test shows nothing
  int times = 0;
  EXPECT_TRUE(shelf.cache.tokens(7, 100, Maker{&times}).made);
  EXPECT_THAT(files(), ElementsAre("tokens-0000000000000007"));
}

TEST(DataCache, LetsOneMakeWhatSeveralAskFor) {
  Shelf shelf;
  int times = 0;  // only whoever holds the lock writes it
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.emplace_back([&] { shelf.cache.tokens(7, 100, Maker{&times, 1000}); });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(times, 1);
}

TEST(DataCache, KeepsTokensInMemoryWhereItCannotWrite) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  int times = 0;
  const DataCache blocked(scratch.write("file", "in the way") + "/cache", log);
  EXPECT_THAT(blocked.tokens(7, 100, Maker{&times}).tokens.narrow, ElementsAre(0, 1, 2));
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("cache entry is not kept: ")));
  EXPECT_THAT(DataCache("", log).tokens(7, 100000, Maker{&times}).tokens.wide, ElementsAre(0, 1, 2));
  EXPECT_EQ(times, 2);
}

TEST(DataCache, KnowsAFileByItsContentAndReadsItOnceOnlyIfItIsOld) {
  Shelf shelf;
  const std::string file = shelf.scratch.write("a.txt", "one");
  const uint64_t one = shelf.cache.content_hash(file);
  EXPECT_EQ(shelf.cache.content_hash(shelf.scratch.write("b.txt", "one")), one);
  EXPECT_NE(shelf.cache.content_hash(shelf.scratch.write("a.txt", "two")), one);  // as long, and written in the same tick perhaps
  EXPECT_FALSE(std::filesystem::exists(shelf.scratch.path("cache")));             // too fresh to be remembered
  EXPECT_THAT(refusal([&] { shelf.cache.content_hash(shelf.scratch.path("none")); }), HasSubstr("cannot open "));
}

TEST(FileLock, SaysWhoHoldsItAndCanBeInterrupted) {
  const Scratch scratch;
  const std::string path = scratch.path("x.lock");
  auto held = std::make_unique<FileLock>(path, [](double, const std::string&) {});
  ASSERT_TRUE(held->held());
  int calls = 0;
  std::string holder;
  const auto wait = [&] {
    const FileLock second(path, [&](double waited_s, const std::string& who) {
      EXPECT_GE(waited_s, 0);
      holder = who;
      if (++calls == 3) throw Error(Error::Kind::cancelled, "interrupted");
    });
  };
  EXPECT_THROW(wait(), Error);
  EXPECT_THAT(holder, HasSubstr("process " + std::to_string(::getpid()) + " on "));
  held.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  const FileLock third(path, [](double, const std::string&) { ADD_FAILURE() << "the interrupted wait still holds the file"; });
  EXPECT_TRUE(third.held());
}

TEST(DataCache, AStopEndsTheWaitForAnotherProcess) {
  const Scratch scratch;
  base::Log log = base::Log::capture();
  const DataCache maker(scratch.path("cache"), log);
  const std::unique_ptr<FileLock> held = maker.lock("tokens", 7);
  base::Stop stop;
  const DataCache waiting(scratch.path("cache"), log, &stop);
  std::jthread asker([&](const std::stop_token& ended) {  // ended: the wait is over without a line
    while (log.lines().empty() && !ended.stop_requested()) std::this_thread::yield();
    stop.request(SIGTERM);
  });
  try {
    waiting.lock("tokens", 7);
    ADD_FAILURE() << "it got the lock";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::cancelled);
    EXPECT_THAT(error.what(), HasSubstr("stopped while waiting for process " + std::to_string(::getpid())));
  }
  EXPECT_THAT(log.lines().front(), HasSubstr("which makes " + maker.path("tokens", 7)));
}

}  // namespace
}  // namespace cairn::data
