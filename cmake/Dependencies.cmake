# What we stand on. Headers and libraries in CAIRN_DEPS are found before the system's.
set(CAIRN_DEPS "" CACHE PATH "A folder searched first for headers (include/) and libraries (lib/)")
if(CAIRN_DEPS)
  list(PREPEND CMAKE_PREFIX_PATH ${CAIRN_DEPS} ${CAIRN_DEPS}/usr)
  target_include_directories(cairn_flags SYSTEM BEFORE INTERFACE ${CAIRN_DEPS}/include ${CAIRN_DEPS}/usr/include)
  target_link_directories(cairn_flags BEFORE INTERFACE ${CAIRN_DEPS}/lib ${CAIRN_DEPS}/usr/lib
    ${CAIRN_DEPS}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
target_link_libraries(cairn_flags INTERFACE Threads::Threads)
# Two versions of fmt live side by side, each in its own inline namespace: the system's library for the plain rooms, and for the
# rooms that see libtorch the wheel's headers with cmake/fmt_of_torch.cpp. So no fmt type may cross between rooms.
find_library(CAIRN_FMT NAMES fmt REQUIRED)
target_link_libraries(cairn_flags INTERFACE ${CAIRN_FMT})
target_compile_definitions(cairn_flags INTERFACE SPDLOG_FMT_EXTERNAL SPDLOG_HEADER_ONLY ASIO_STANDALONE TOML_HEADER_ONLY=1
  TOML_ENABLE_FORMATTERS=1)

# Tokenizers: regular expressions and normal forms of Unicode. SentencePiece is optional: without it its models are refused with a
# sentence that says what to install.
option(CAIRN_SENTENCEPIECE "Read SentencePiece models where the library is found" ON)
if(CAIRN_TORCH_ROOMS)
  find_library(CAIRN_PCRE2 NAMES pcre2-8 REQUIRED)
  find_library(CAIRN_UTF8PROC NAMES utf8proc REQUIRED)
  if(CAIRN_SENTENCEPIECE)
    find_library(CAIRN_SENTENCEPIECE_LIBRARY NAMES sentencepiece)
    find_path(CAIRN_SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
  endif()
  if(CAIRN_SENTENCEPIECE AND CAIRN_SENTENCEPIECE_LIBRARY AND CAIRN_SENTENCEPIECE_INCLUDE)
    message(STATUS "SentencePiece: ${CAIRN_SENTENCEPIECE_LIBRARY}")
  else()
    unset(CAIRN_SENTENCEPIECE_LIBRARY CACHE)
    message(STATUS "SentencePiece: not found (Debian: libsentencepiece-dev); its models cannot be read")
  endif()
endif()

if(CAIRN_TORCH_ROOMS)
  set(CAIRN_TORCH "" CACHE PATH "The torch package folder of the wheel (holds include/ and lib/)")
  if(NOT EXISTS ${CAIRN_TORCH}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "libtorch not found at CAIRN_TORCH='${CAIRN_TORCH}': ./cairn installs it, or pass the torch folder of an installed wheel")
  endif()
  get_filename_component(CAIRN_SITE ${CAIRN_TORCH} DIRECTORY)
  add_library(cairn_torch INTERFACE)
  target_include_directories(cairn_torch SYSTEM INTERFACE ${CMAKE_SOURCE_DIR}/cmake/torch ${CAIRN_TORCH}/include
    ${CAIRN_TORCH}/include/torch/csrc/api/include)
  target_compile_definitions(cairn_torch INTERFACE AT_PER_OPERATOR_HEADERS)  # libtorch's headers include single operators, not all
  target_link_directories(cairn_torch INTERFACE ${CAIRN_TORCH}/lib)
  # libstdc++ first, and the shared one: some of CUDA's libraries carry and export one of their own, which must not be found before it; and
  # a static one beside it dies in its first destructor.
  target_link_options(cairn_torch INTERFACE -Wl,--no-as-needed,-l:libstdc++.so.6)
  target_link_libraries(cairn_torch INTERFACE torch_cpu c10)
  target_link_options(cairn_torch INTERFACE -Wl,--allow-shlib-undefined
    -Wl,-rpath,${CAIRN_TORCH}/lib -Wl,-rpath,${CAIRN_SITE}/nvidia/cu13/lib)
  # OpenMP is what libtorch itself runs on; using the same one keeps a single pool of threads.
  target_compile_options(cairn_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  find_library(CAIRN_GOMP NAMES libgomp.so.1 gomp PATHS ${CAIRN_TORCH}/lib ${CAIRN_SITE}/torch.libs NO_DEFAULT_PATH)
  if(CAIRN_GOMP)
    target_link_libraries(cairn_torch INTERFACE ${CAIRN_GOMP})
  else()
    target_link_options(cairn_torch INTERFACE -fopenmp)
  endif()
endif()

# MPI is optional: without it the mpi transport says what to install.
option(CAIRN_MPI "Build the mpi transport where MPI is found" ON)
if(CAIRN_MPI)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(MPI_C_FOUND)
  message(STATUS "MPI: ${MPI_C_LIBRARIES}")
else()
  message(STATUS "MPI: not found (Debian: libopenmpi-dev openmpi-bin); no mpi transport")
endif()

# CUDA is optional: sources compile where nvcc is, with a GPU or without.
option(CAIRN_CUDA "Build the CUDA kernels" OFF)
if(CAIRN_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures")
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc can
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(cairn_torch INTERFACE torch_cuda c10_cuda CUDA::cudart CUDA::cublasLt)
  target_include_directories(cairn_torch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # NCCL: the one next to torch first, since libtorch itself loads that one.
  set(nccl_of_torch ${CAIRN_SITE}/nvidia/nccl)
  find_path(CAIRN_NCCL_INCLUDE nccl.h HINTS ${nccl_of_torch}/include ${CUDAToolkit_INCLUDE_DIRS})
  find_library(CAIRN_NCCL NAMES libnccl.so.2 nccl HINTS ${nccl_of_torch}/lib ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CAIRN_NCCL_INCLUDE)
    unset(CAIRN_NCCL CACHE)
  endif()
  # cuDNN: likewise; and the headers that draw its graphs, which come by themselves (deps/gpu.txt).
  set(cudnn_of_torch ${CAIRN_SITE}/nvidia/cudnn)
  find_path(CAIRN_CUDNN_INCLUDE cudnn_graph.h HINTS ${cudnn_of_torch}/include ${CUDAToolkit_INCLUDE_DIRS})
  find_path(CAIRN_CUDNN_FRONTEND cudnn_frontend.h HINTS ${CAIRN_CUDNN_HEADERS} ${CAIRN_SITE}/include)
  find_library(CAIRN_CUDNN NAMES libcudnn.so.9 HINTS ${cudnn_of_torch}/lib ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CAIRN_CUDNN_INCLUDE OR NOT CAIRN_CUDNN_FRONTEND)
    unset(CAIRN_CUDNN CACHE)
  endif()
endif()
if(CAIRN_NCCL)
  message(STATUS "NCCL: ${CAIRN_NCCL}")
else()
  message(STATUS "NCCL: not found or no CAIRN_CUDA; no nccl transport")
endif()
if(CAIRN_CUDNN)
  message(STATUS "cuDNN: ${CAIRN_CUDNN}, ${CAIRN_CUDNN_FRONTEND}")
elseif(CAIRN_CUDA)
  message(STATUS "cuDNN: not found, or cudnn_frontend.h is not (deps/gpu.txt); packed documents go to FlashAttention-2")
endif()
