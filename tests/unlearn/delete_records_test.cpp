// Deletion: in force when its line is on disk, whatever happens afterwards.
#include "unlearn/delete_records.h"

#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/faulty_disk.h"
#include "base/files/recording_disk.h"
#include "small_store.h"
#include "unlearn/audit.h"
#include "unlearn/records.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// One store that is trained once; each test has a copy.
class DeleteRecords : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared = std::make_unique<harness::ScratchFolder>();
    small_store(*shared / "store", shared->file("records.jsonl", some_records(13)));
  }
  static void TearDownTestSuite() { shared.reset(); }
  Store copy(const std::string& name = "store") const {
    fs::copy(*shared / "store", scratch / name, fs::copy_options::recursive);
    return Store(scratch / name);
  }
  static std::unique_ptr<harness::ScratchFolder> shared;
  harness::ScratchFolder scratch;
};
std::unique_ptr<harness::ScratchFolder> DeleteRecords::shared;

bool mentions(const fs::path& folder, const std::string& text) {
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && base::read_file(entry.path(), 1 << 24).find(text) != std::string::npos) return true;
  return false;
}

TEST_F(DeleteRecords, NothingThatDependsOnThemIsServedAndNothingOfThemIsLeft) {
  const Store store = copy();
  ASSERT_TRUE(mentions(store.folder(), "somebody number 7 "));
  const Place place = store.spec().partition().place_of(7);
  const Deleted done = delete_records(store, std::vector<int64_t>{7}, [&](const Deleted& logged) {
    EXPECT_THAT(store.deleted(), ElementsAre(7));  // the log comes before the answer
    EXPECT_EQ(logged.purged, Purged{});
  });
  EXPECT_THAT(done.records, ElementsAre(7));
  EXPECT_EQ(done.purged.records, 1);
  EXPECT_EQ(done.purged.artifacts, 3);  // one order has it first, the other last
  EXPECT_FALSE(mentions(store.folder(), "somebody number 7 "));
  for (const std::string& name : store.artifact_names())
    EXPECT_FALSE(parse_artifact_name(name)->depends_on(place.shard, place.slice)) << name;
  EXPECT_EQ(done.served.answering(), 2);
  EXPECT_THAT(audit(store).trouble, IsEmpty());
}

TEST_F(DeleteRecords, TwiceIsANoticeAndAnUnknownOneIsRefusedBeforeAnythingIsWritten) {
  const Store store = copy();
  delete_records(store, std::vector<int64_t>{7});
  const Deleted again = delete_records(store, std::vector<int64_t>{7, 8});
  EXPECT_THAT(again.before, ElementsAre(7));
  EXPECT_THAT(again.records, ElementsAre(8));
  EXPECT_THAT(refusal_by([&] {
                delete_records(store, std::vector<int64_t>{3, 13});
              }),
              HasSubstr("record 13: " + store.folder().string() + " has records 0 to 12. Nothing was deleted."));
  EXPECT_THAT(store.deleted(), ElementsAre(7, 8));
}

TEST_F(DeleteRecords, ByAField) {
  const Store store = copy();
  const std::vector<int64_t> found = find_records(store, "user", "u1");
  EXPECT_THAT(found, ElementsAre(1, 3, 5, 7, 9, 11));
  delete_records(store, found);
  EXPECT_THAT(find_records(store, "user", "u1"), IsEmpty());
  EXPECT_EQ(find_records(store, "user", "u0").size(), 7u);
}

TEST_F(DeleteRecords, WhenAllOrdersAreDeadNobodyAnswers) {
  const Store store = copy();
  std::vector<int64_t> all;
  for (int64_t shard = 0; shard < 2; ++shard)
    for (int64_t slice = 0; slice < 2; ++slice) all.push_back(store.spec().partition().records_in({shard, slice}).front());
  EXPECT_EQ(delete_records(store, all).served.answering(), 0);
  EXPECT_THAT(store.artifact_names(), IsEmpty());
}

TEST_F(DeleteRecords, AFullDiskDeletesNothing) {
  const Store store = copy();
  const base::FaultyDisk disk({.full_after_bytes = 0});
  EXPECT_THAT(refusal_by([&] { delete_records(store, std::vector<int64_t>{7}, {}, disk); }), HasSubstr("Nothing was deleted"));
  EXPECT_GT(disk.fired(), 0);
  EXPECT_THAT(store.deleted(), IsEmpty());
  EXPECT_EQ(served_by(store).answering(), 2);
}

// A process or a machine that dies at any moment of a deletion: after a restart either nothing was deleted (and nothing was answered), or
// nothing that depends on the record is served. The rest is removed by the next command.
TEST_F(DeleteRecords, ACrashAtAnyMomentServesNothingDeleted) {
  const Store store = copy();
  const Place place = store.spec().partition().place_of(7);
  const base::RecordingDisk disk(store.folder());
  size_t answered = 0;
  delete_records(
      store, std::vector<int64_t>{7}, [&](const Deleted&) { answered = disk.changes(); }, disk);
  ASSERT_GT(disk.changes(), answered + 5);
  std::mt19937_64 random(3);
  int64_t before_the_switch = 0;
  for (size_t done = 0; done <= disk.changes(); ++done)
    for (const auto dies : {base::RecordingDisk::Dies::process, base::RecordingDisk::Dies::machine}) {
      const fs::path left = scratch / "left";
      fs::remove_all(left);
      disk.after_crash(
          done, dies, [&] { return random(); }, left);
      for (const char* folder : {"work", "artifacts", "slices"}) fs::create_directories(left / folder);
      const Store restarted(left);
      const bool deleted = !restarted.deleted().empty();
      EXPECT_TRUE(deleted || done < answered) << "after change " << done;
      const Served served = served_by(restarted);
      for (int64_t shard = 0; shard < 2; ++shard)
        for (const Artifact& one : served.chain(shard))
          EXPECT_FALSE(deleted && one.name.depends_on(place.shard, place.slice)) << to_text(one.name) << " after change " << done;
      if (!deleted) continue;
      if (leftovers(restarted) != Purged{}) ++before_the_switch;
      purge(restarted);
      EXPECT_EQ(leftovers(restarted), Purged{}) << "after change " << done;
      EXPECT_FALSE(mentions(left, "somebody number 7 ")) << "after change " << done;
    }
  EXPECT_GT(before_the_switch, 5);  // or the trials have shown nothing
}

TEST_F(DeleteRecords, FilesOfAStageThatWasBeingTrainedGoToo) {
  const Store store = copy();
  const Place place = store.spec().partition().place_of(7);
  const ArtifactName touched{.shard = place.shard, .slices = {place.slice}}, other{.shard = 1 - place.shard, .slices = {0}};
  for (const ArtifactName& name : {touched, other}) {
    fs::create_directories(work_folder(store, name, 1));
    std::ofstream(work_folder(store, name, 1) / "records.jsonl") << "somebody number 7 went out\n";
  }
  EXPECT_EQ(delete_records(store, std::vector<int64_t>{7}).purged.copies, 1);
  EXPECT_FALSE(fs::exists(work_folder(store, touched, 1)));
  EXPECT_TRUE(fs::exists(work_folder(store, other, 1)));
}

TEST_F(DeleteRecords, AuditFindsWhatMustNotBe) {
  const Store store = copy();
  EXPECT_THAT(audit(store).trouble, IsEmpty());
  EXPECT_THAT(to_text(audit(store)), HasSubstr("nothing that is served has read a deleted record"));
  // A byte of an adapter.
  const fs::path adapter = store.artifact("s0-0") / "adapter.safetensors";
  std::string bytes = base::read_file(adapter, 1 << 24);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(adapter, std::ios::binary) << bytes;
  EXPECT_THAT(audit(store).trouble, ElementsAre(HasSubstr("the checksum differs")));
  // A deletion that did not end.
  const Store killed = copy("killed");
  EXPECT_THROW(delete_records(killed, std::vector<int64_t>{7}, [](const Deleted&) { throw Error(Error::Kind::cancelled, "killed"); }),
               Error);
  const Audit found = audit(killed);
  EXPECT_THAT(found.trouble, ElementsAre(HasSubstr("a deletion has not ended: 1 record, 3 artifacts")));
  EXPECT_EQ(to_json(found).find("\"clean\":true"), std::string::npos);
}

TEST_F(DeleteRecords, CapacityFollowsWhatIsLive) {
  const Store store = copy();
  const CapacityReport whole = capacity_of(store, 1);
  EXPECT_EQ(whole.first_slices, 4);
  EXPECT_DOUBLE_EQ(whole.expected, whole.expected_new);
  EXPECT_NEAR(whole.simulated / whole.expected, 1, 0.05);
  delete_records(store, std::vector<int64_t>{7});
  const CapacityReport after = capacity_of(store, 1);
  EXPECT_EQ(after.first_slices, 3);
  EXPECT_LT(after.expected, whole.expected);
  EXPECT_NEAR(after.simulated / after.expected, 1, 0.05);
}

}  // namespace
}  // namespace cairn::unlearn
