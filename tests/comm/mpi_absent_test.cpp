// Compiled only where MPI was not found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/mpi/transport.h"

namespace cairn::comm {
namespace {

TEST(Mpi, SaysWhichPackagesToInstall) {
  try {
    make_mpi_transport();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("apt-get install libopenmpi-dev openmpi-bin"));
  }
}

TEST(Mpi, RunsUnderMpirun) { GTEST_SKIP() << "no MPI here: install libopenmpi-dev and openmpi-bin"; }

}  // namespace
}  // namespace cairn::comm
