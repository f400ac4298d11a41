# How our own code is compiled: one set of flags for every target, so that the precompiled header is always usable.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

option(CAIRN_TESTS "Build the tests" ON)
option(CAIRN_TORCH_ROOMS "Build the rooms that need libtorch (off: base, comm and memory only, for sanitizers)" ON)
set(CAIRN_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: address,undefined or thread")

set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
# (-Wrestrict: g++ 12 sees overlaps in std::string that are not there, its bug 105651.)
add_library(cairn_flags INTERFACE)
# Warnings are errors where we know them: other compilers see other things (g++ 13 takes overruns for certain that cannot be).
set(cairn_werror "")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(cairn_werror -Werror)
endif()
target_compile_options(cairn_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow=local ${cairn_werror} -Wno-restrict -fno-math-errno -fno-trapping-math>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # The compiler collects its garbage from 700 MB on, not from 128 MB on: 5 % of the time.
  target_compile_options(cairn_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=700000>")
endif()
target_include_directories(cairn_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(CMAKE_UNITY_BUILD)
  target_compile_options(cairn_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)  # takes joined sources for headers
endif()
if(CAIRN_SANITIZE)
  target_compile_options(cairn_flags INTERFACE -fsanitize=${CAIRN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(cairn_flags INTERFACE -fsanitize=${CAIRN_SANITIZE})
  if(CAIRN_SANITIZE MATCHES thread)
    target_compile_options(cairn_flags INTERFACE -Wno-tsan)  # Asio's fences, which g++ cannot follow
  endif()
endif()

# Every compile notes its CPU seconds (./cairn slowest); behind ccache only those that really ran.
set(CAIRN_TIMER ${CMAKE_SOURCE_DIR}/tools/compile_timer)
find_program(CAIRN_CCACHE ccache)
if(CAIRN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_PREFIX=${CAIRN_TIMER}
    CCACHE_PCH_EXTSUM=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CAIRN_CCACHE})
else()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CAIRN_TIMER})
endif()
find_program(CAIRN_MOLD mold)
if(CAIRN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
