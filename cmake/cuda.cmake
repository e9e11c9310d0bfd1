# The CUDA backend is optional. DEEPINFER_CUDA: AUTO builds it if nvcc is found (on the path or in /usr/local/cuda/bin),
# ON insists on it, OFF leaves it out. A program without it says so when it is asked for that device.
#
# Kernels are compiled for compute capability 9.0 alone, with the instructions that only such cards have (90a). Those
# that do without are compiled for 10.0 in a test (tests/backends/cuda).
set(DEEPINFER_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
option(DEEPINFER_RACECHECK "Let every lane arrive at barriers, which compute-sanitizer's racecheck understands" OFF)
set(DEEPINFER_HAS_CUDA OFF)
set(DEEPINFER_LEAST_NVCC 12.4)

# Fails if CUDA was asked for, else says why it is left out.
function(deepinfer_without_cuda reason)
  if(DEEPINFER_CUDA STREQUAL "AUTO")
    message(STATUS "the CUDA backend is left out: ${reason}")
  else()
    message(FATAL_ERROR "DEEPINFER_CUDA=${DEEPINFER_CUDA}: ${reason}")
  endif()
endfunction()

if(DEEPINFER_CUDA)
  find_program(DEEPINFER_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT DEEPINFER_NVCC)
    deepinfer_without_cuda("no nvcc found; set DEEPINFER_NVCC to its path")
  elseif(DEEPINFER_SANITIZE)
    deepinfer_without_cuda("the sanitizers and the CUDA runtime do not go together")
  else()
    set(CMAKE_CUDA_COMPILER ${DEEPINFER_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # named below, with their letter
    enable_language(CUDA)
    # CMake 3.25 does not know nvcc's flag for C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # src/backends/cuda names it, with its path: programs are linked by g++
    # Nor which folders the host's compiler searches anyway; naming one of them would hide the others' headers.
    list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS DEEPINFER_LEAST_NVCC)
      deepinfer_without_cuda("nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than ${DEEPINFER_LEAST_NVCC}")
    else()
      find_package(CUDAToolkit REQUIRED)
      set(DEEPINFER_HAS_CUDA ON)
      if(DEEPINFER_CCACHE)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${DEEPINFER_CCACHE})
      endif()
    endif()
  endif()
endif()
