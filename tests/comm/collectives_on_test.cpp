// Where the tests of collectives_test.cpp run, in this process: mpi_main.cpp has those that mpirun starts.
#include "comm/collectives_suite.h"

namespace cairn::comm {
namespace {

using harness::On;

INSTANTIATE_TEST_SUITE_P(On, Collectives,
                         testing::Values(Case{On::local, 1}, Case{On::local, 2}, Case{On::local, 3}, Case{On::local, 5}, Case{On::local, 8},
                                         Case{On::net, 1}, Case{On::net, 2}, Case{On::net, 3}, Case{On::net, 4}, Case{On::machines, 2},
                                         Case{On::machines, 3}, Case{On::machines, 5}),
                         name_of);

}  // namespace
}  // namespace cairn::comm
