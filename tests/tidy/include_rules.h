#pragma once
#include <array>
#include <string>
#include <string_view>

#include "tidy/source.h"

namespace cairn::tidy {

// The floor a room is on; rooms on one floor do not include each other. -1: no room.
inline int floor_of(std::string_view room) {
  static constexpr std::array<std::string_view, 15> kFloors = {"base",
                                                               "kernels",
                                                               "comm memory",
                                                               "mesh",
                                                               "model data optim",
                                                               "parallel evaluate",
                                                               "sync snapshot elastic",
                                                               "planner",
                                                               "train",
                                                               "serve task",
                                                               "posttrain federate graph",
                                                               "study",
                                                               "unlearn",
                                                               "cli",
                                                               "lab"};
  for (size_t i = 0; i < kFloors.size(); ++i) {
    if (!room.empty() && !find_word(kFloors[i], room).empty()) return static_cast<int>(i);
  }
  return -1;
}

// A room includes itself and rooms on lower floors; its tests include the same, the harness, the examples (those of study the proofs), and
// what lies beside them.
inline Findings includes_point_downward(const Source& source) {
  Findings found;
  const std::string room = room_of(source.path);
  if (!is_code(source) || room.empty() || room == "harness" || room == "tidy") return found;
  if (floor_of(room) < 0) {
    found.push_back(finding(source, 0, "\"" + room + "\" is no room: the list is in tests/tidy/include_rules.h"));
    return found;
  }
  for (const Include& include : includes_of(source)) {
    if (!include.quoted) continue;
    const std::string target = include.target.substr(0, include.target.find('/'));
    const bool beside = target == include.target;  // "ring.h" without a folder
    const bool for_tests = beside || target == "harness" || target == "examples" || (target == "proofs" && room == "study");
    if (target == room || (starts_with(source.path, "tests/") && for_tests) || (room == "lab" && target == "examples")) continue;
    if (beside || floor_of(target) < 0) {
      found.push_back(finding(source, include.offset, "\"" + include.target + "\": write the path from the source folder, room first"));
    } else if (floor_of(target) >= floor_of(room)) {
      found.push_back(
          finding(source, include.offset, "room " + room + " may not include \"" + include.target + "\": includes point downward"));
    }
  }
  return found;
}

// torch/torch.h, torch::nn and torch::optim cost twenty seconds a file and are not used.
inline Findings leaves_out_the_heavy_half_of_torch(const Source& source) {
  Findings found;
  if (!is_code(source)) return found;
  for (const Include& include : includes_of(source)) {
    for (std::string_view banned : {"torch/torch.h", "torch/all.h", "torch/nn", "torch/optim", "torch/extension.h", "torch/script.h"}) {
      if (starts_with(include.target, banned))
        found.push_back(finding(source, include.offset, include.target + ": use ATen and autograd instead"));
    }
  }
  return found;
}

// Libraries that are slow to compile stay in the one or two .cpp files that wrap them. (Coroutines name Asio's types where they are
// declared: these two headers serve three .cpp files.)
inline Findings wraps_heavy_libraries_in_cpp_files(const Source& source) {
  Findings found;
  if (!is_header(source) || source.path == "src/comm/net/async_stream.h" || source.path == "src/comm/net/unauthenticated_peers.h")
    return found;
  for (const Include& include : includes_of(source)) {
    for (std::string_view heavy : {"asio", "openssl/", "toml++/", "CLI/", "spdlog/", "nccl.h", "mpi.h", "liburing.h"}) {
      if (starts_with(include.target, heavy)) {
        found.push_back(finding(source, include.offset, include.target + " in a header: include it in the .cpp file that wraps it"));
      }
    }
  }
  return found;
}

// base, comm and memory link no libtorch, so that their sanitizer builds are quick; only the face of Group and the allocator of CPU tensors
// know it.
inline Findings keeps_plain_rooms_free_of_torch(const Source& source) {
  Findings found;
  const std::string room = room_of(source.path);
  if (!is_code(source) || (room != "base" && room != "comm" && room != "memory") || ends_with(source.path, "_tensor_test.cpp"))
    return found;
  if (starts_with(source.path, "src/comm/group.") || starts_with(source.path, "src/comm/device_stream_") ||
      starts_with(source.path, "src/memory/host_allocator."))
    return found;
  for (const Include& include : includes_of(source)) {
    for (std::string_view part : {"ATen/", "c10/", "torch/"}) {
      if (starts_with(include.target, part))
        found.push_back(finding(source, include.offset, include.target + ": room " + room + " links no libtorch"));
    }
  }
  return found;
}

}  // namespace cairn::tidy
