// The main of tests that mpirun runs as several ranks: all run the same cases, rank 0 alone prints, and a case fails if it fails on any.
#include <string>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>

#include "comm/collectives_suite.h"
#include "comm/mpi/transport.h"

namespace cairn::comm {
namespace {

// Only to list the cases nobody needs mpirun: then those of both runs.
std::vector<Case> cases() {
  int begun = 0, size = 0;
  MPI_Initialized(&begun);
  if (!begun) return {{harness::On::mpi, 2}, {harness::On::mpi, 3}};
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {{harness::On::mpi, size}};
}

INSTANTIATE_TEST_SUITE_P(On, Collectives, testing::ValuesIn(cases()), name_of);

// Brings the other ranks' failures to rank 0 at the end of each case. Also keeps the ranks in step: one that fails early waits here.
class Reporter final : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    said_ +=
        std::string(part.file_name() ? part.file_name() : "?") + ":" + std::to_string(part.line_number()) + ": " + part.message() + "\n";
  }

  void OnTestEnd(const testing::TestInfo&) override {
    int rank = 0, size = 0, bytes = static_cast<int>(said_.size());
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<int> counts(static_cast<size_t>(size)), begins(static_cast<size_t>(size));
    MPI_Allgather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
    for (int r = 1; r < size; ++r) begins[r] = begins[r - 1] + counts[r - 1];
    std::string all(static_cast<size_t>(begins.back() + counts.back()), ' ');
    MPI_Gatherv(said_.data(), bytes, MPI_CHAR, all.data(), counts.data(), begins.data(), MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int r = 1; rank == 0 && r < size; ++r) {
      if (counts[r] > 0)
        ADD_FAILURE() << "on rank " << r << ": " << all.substr(static_cast<size_t>(begins[r]), static_cast<size_t>(counts[r]));
    }
    said_.clear();
  }

 private:
  std::string said_;
};

int run(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) != "--gtest_list_tests") continue;
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  const bool speaks = make_mpi_transport()->rank() == 0;  // begins MPI, which then ends with the process
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (!speaks) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Reporter);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace cairn::comm

int main(int argc, char** argv) { return cairn::comm::run(argc, argv); }
