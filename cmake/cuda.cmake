# onebit_cuda(SOURCES_VAR): with ONEBIT_CUDA, builds src/backend/gpu and src/backend/cuda with nvcc as the library
# onebit_cuda, links it to the backend floor and takes the stand-in none/cuda.cpp out of its sources.
#
# ONEBIT_CUDA_ARCHS lists the compute capabilities to build for. The CUDA runtime is linked statically and the driver is
# looked for at run time, so such a build also starts where there is none.
set(ONEBIT_CUDA_ARCHS "80;86;89;90a;100;120" CACHE STRING "Compute capabilities to build CUDA kernels for")

# CMake 3.25 does not know nvcc's flag for C++20.
if(ONEBIT_CUDA AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

function(onebit_cuda sources_var)
  if(NOT ONEBIT_CUDA)
    return()
  endif()
  find_package(CUDAToolkit REQUIRED)
  file(GLOB cuda_sources CONFIGURE_DEPENDS backend/gpu/*.cpp backend/gpu/*.cu backend/cuda/*.cpp backend/cuda/*.cu)
  add_library(onebit_cuda STATIC ${cuda_sources})
  set_target_properties(onebit_cuda PROPERTIES CUDA_ARCHITECTURES OFF)
  foreach(arch ${ONEBIT_CUDA_ARCHS})
    target_compile_options(onebit_cuda PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode=arch=compute_${arch},code=sm_${arch}>")
  endforeach()
  # No contraction beyond the fmaf that is written, as in the rest of the project.
  target_compile_options(onebit_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--fmad=false -Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr>"
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Werror=return-type;-Wshadow;-ffp-contract=off>")
  target_link_libraries(onebit_cuda PUBLIC onebit_plan CUDA::cudart_static)
  set(sources ${${sources_var}})
  list(FILTER sources EXCLUDE REGEX "none/cuda\\.cpp$")
  set(${sources_var} ${sources} PARENT_SCOPE)
endfunction()
