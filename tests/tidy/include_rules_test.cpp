// Each include rule catches a bad example and lets a good one pass.
#include "tidy/include_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::tidy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(IncludesPointDownward, RefusesARoomAbove) {
  const Source bad{"src/comm/collectives/ring.cpp", "#include \"comm/collectives/ring.h\"\n#include \"mesh/mesh.h\"\n"};
  EXPECT_THAT(includes_point_downward(bad),
              ElementsAre("src/comm/collectives/ring.cpp:2: room comm may not include \"mesh/mesh.h\": includes point downward"));
}

TEST(IncludesPointDownward, RefusesTheNeighbourOnTheSameFloor) {
  EXPECT_THAT(includes_point_downward({"src/sync/diloco.cpp", "#include \"snapshot/snapshot.h\"\n"}),
              ElementsAre(HasSubstr("room sync may not include")));
  EXPECT_THAT(includes_point_downward({"tests/data/bpe_test.cpp", "#include \"model/model.h\"\n"}),
              ElementsAre(HasSubstr("room data may not include")));
}

TEST(IncludesPointDownward, RefusesAPathWithoutItsRoomAndAnUnknownRoom) {
  EXPECT_THAT(includes_point_downward({"src/comm/collectives/ring.cpp", "#include \"ring.h\"\n"}), ElementsAre(HasSubstr("room first")));
  EXPECT_THAT(includes_point_downward({"src/comm/collectives/ring.cpp", "#include \"lobby/ring.h\"\n"}),
              ElementsAre(HasSubstr("room first")));
  EXPECT_THAT(includes_point_downward({"src/lobby/ring.cpp", ""}), ElementsAre(HasSubstr("\"lobby\" is no room")));
}

TEST(IncludesPointDownward, AllowsLowerFloorsTheRoomItselfAndTheHarness) {
  EXPECT_THAT(
      includes_point_downward({"src/cli/main.cpp", "#include \"base/error.h\"\n#include \"study/law.h\"\n#include \"cli/train.h\"\n"}),
      IsEmpty());
  EXPECT_THAT(includes_point_downward(
                  {"tests/sync/all_reduce_test.cpp",
                   "#include \"sync/all_reduce.h\"\n#include \"harness/ranks.h\"\n#include \"examples/x.h\"\n#include \"pairs.h\"\n"}),
              IsEmpty());
  EXPECT_THAT(includes_point_downward({"tests/study/vit_test.cpp", "#include \"proofs/pilot.h\"\n"}), IsEmpty());
  EXPECT_THAT(includes_point_downward({"tests/sync/vit_test.cpp", "#include \"proofs/pilot.h\"\n"}), ElementsAre(HasSubstr("room first")));
  EXPECT_THAT(
      includes_point_downward({"src/base/error.cpp", "// #include \"cli/main.h\"\n#include <vector>\nauto s = \"#include <cli/x.h>\";\n"}),
      IsEmpty());
}

TEST(HeavyTorch, IsRefusedEverywhere) {
  EXPECT_THAT(leaves_out_the_heavy_half_of_torch({"tests/model/x_test.cpp", "#include <torch/torch.h>\n"}),
              ElementsAre(HasSubstr("use ATen")));
  EXPECT_THAT(leaves_out_the_heavy_half_of_torch({"src/model/x.cpp", "\n#include <torch/nn/module.h>\n"}),
              ElementsAre(HasSubstr("x.cpp:2:")));
  EXPECT_THAT(leaves_out_the_heavy_half_of_torch({"src/model/x.cpp", "#include <torch/csrc/autograd/autograd.h>\n"}), IsEmpty());
}

TEST(HeavyLibraries, StayOutOfHeaders) {
  for (const char* heavy :
       {"asio.hpp", "asio/ip/tcp.hpp", "openssl/evp.h", "toml++/toml.h", "CLI/CLI.hpp", "spdlog/spdlog.h", "nccl.h", "mpi.h"}) {
    const std::string text = "#pragma once\n#include <" + std::string(heavy) + ">\n";
    EXPECT_THAT(wraps_heavy_libraries_in_cpp_files({"src/base/x.h", text}), ElementsAre(HasSubstr("in a header"))) << heavy;
    EXPECT_THAT(wraps_heavy_libraries_in_cpp_files({"src/base/x.cpp", text}), IsEmpty()) << heavy;
  }
}

TEST(PlainRooms, IncludeNoLibtorch) {
  const std::string text = "#include <ATen/core/Tensor.h>\n";
  EXPECT_THAT(keeps_plain_rooms_free_of_torch({"src/comm/collectives/ring.h", text}), ElementsAre(HasSubstr("links no libtorch")));
  EXPECT_THAT(keeps_plain_rooms_free_of_torch({"tests/base/x_test.cpp", "#include <c10/util/Half.h>\n"}),
              ElementsAre(HasSubstr("links no libtorch")));
  EXPECT_THAT(keeps_plain_rooms_free_of_torch({"src/comm/group.h", text}), IsEmpty());
  EXPECT_THAT(keeps_plain_rooms_free_of_torch({"tests/comm/group_tensor_test.cpp", text}), IsEmpty());
  EXPECT_THAT(keeps_plain_rooms_free_of_torch({"src/mesh/box.cpp", text}), IsEmpty());
}

}  // namespace
}  // namespace cairn::tidy
