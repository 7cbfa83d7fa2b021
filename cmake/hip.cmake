# onebit_hip(SOURCES_VAR): with ONEBIT_HIP, builds src/backend/gpu and src/backend/hip as the library onebit_hip, links it
# to the backend floor and takes the stand-in none/rocm.cpp out of its sources. Kernels are compiled by clang (19 or
# later, or ROCm's), everything else by the project's compiler; Debian's packages are clang-tools-19, lld-19,
# libamdhip64-dev and rocm-device-libs.
set(ONEBIT_HIP_ARCHS "gfx1100;gfx1151" CACHE STRING "AMD GPUs to build HIP kernels for")

# onebit_hip_device_libs(FOLDER): a copy of the device libraries, with the constants of GPUs that are younger than they.
function(onebit_hip_device_libs folder)
  file(GLOB libraries ${ONEBIT_HIP_DEVICE_LIBS}/*.bc)
  file(COPY ${libraries} DESTINATION ${folder})
  foreach(arch ${ONEBIT_HIP_ARCHS})
    string(REGEX REPLACE "^gfx" "" number ${arch})
    set(library ${folder}/oclc_isa_version_${number}.bc)
    if(NOT EXISTS ${library})
      string(REGEX REPLACE "^([0-9]+)([0-9])([0-9])$" "\\1;\\2;\\3" parts ${number})
      list(GET parts 0 major)
      list(GET parts 1 minor)
      list(GET parts 2 step)
      math(EXPR version "${major} * 1000 + ${minor} * 100 + ${step}")
      file(WRITE ${folder}/isa.ll "target triple = \"amdgcn-amd-amdhsa\"\n"
        "@__oclc_ISA_version = linkonce_odr protected addrspace(4) constant i32 ${version}, align 4\n")
      execute_process(COMMAND ${ONEBIT_HIP_COMPILER} -x ir -c -emit-llvm --target=amdgcn-amd-amdhsa -nogpulib
        ${folder}/isa.ll -o ${library} COMMAND_ERROR_IS_FATAL ANY)
    endif()
  endforeach()
endfunction()

# Looks for what compiling kernels needs; sets ONEBIT_HIP_FLAGS, or nothing where it is missing.
function(onebit_find_hip)
  # By the folder that also has its tools under their plain names.
  find_program(ONEBIT_HIP_COMPILER NAMES amdclang++ clang++
    PATHS /opt/rocm/bin /usr/lib/llvm-20/bin /usr/lib/llvm-19/bin NO_DEFAULT_PATH)
  find_path(ONEBIT_HIP_INCLUDE hip/hip_runtime.h PATHS /opt/rocm/include)
  find_path(ONEBIT_HIP_DEVICE_LIBS ocml.bc DOC "ROCm's device libraries" PATHS /opt/rocm/amdgcn/bitcode
    /usr/lib/x86_64-linux-gnu/amdgcn/bitcode /usr/lib/amdgcn/bitcode)
  if(NOT ONEBIT_HIP_COMPILER OR NOT ONEBIT_HIP_INCLUDE OR NOT ONEBIT_HIP_DEVICE_LIBS)
    return()
  endif()
  set(libs ${CMAKE_BINARY_DIR}/hip-device-libs)
  onebit_hip_device_libs(${libs})
  cmake_path(GET ONEBIT_HIP_INCLUDE PARENT_PATH root)
  # No contraction beyond the fmaf that is written, as in the rest of the project.
  set(ONEBIT_HIP_FLAGS -x hip --rocm-path=${root} --rocm-device-lib-path=${libs} -D__HIP_PLATFORM_AMD__ -O3 -std=c++20
    -ffp-contract=off -mno-wavefrontsize64 -Wno-cuda-compat -I${CMAKE_SOURCE_DIR}/src PARENT_SCOPE)
endfunction()

function(onebit_hip sources_var)
  if(NOT ONEBIT_HIP)
    return()
  endif()
  onebit_find_hip()
  if(NOT ONEBIT_HIP_FLAGS)
    message(FATAL_ERROR "ONEBIT_HIP: clang++ 19, hip/hip_runtime.h or ROCm's device libraries are missing")
  endif()
  set(archs)
  foreach(arch ${ONEBIT_HIP_ARCHS})
    list(APPEND archs --offload-arch=${arch})
  endforeach()
  file(GLOB kernels CONFIGURE_DEPENDS backend/gpu/*.cu backend/hip/*.cu)
  set(objects)
  foreach(kernel ${kernels})
    cmake_path(GET kernel STEM name)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/hip/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${kernel} DEPFILE ${object}.d COMMENT "Building HIP object ${name}.o"
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/hip
      COMMAND ${ONEBIT_HIP_COMPILER} ${ONEBIT_HIP_FLAGS} ${archs} -MD -MT ${object} -MF ${object}.d -c ${kernel}
        -o ${object})
    list(APPEND objects ${object})
  endforeach()
  file(GLOB hosts CONFIGURE_DEPENDS backend/gpu/*.cpp backend/hip/*.cpp)
  add_library(onebit_hip STATIC ${hosts} ${objects})
  onebit_flags(onebit_hip)
  list(JOIN ONEBIT_HIP_ARCHS ", " names)
  target_compile_definitions(onebit_hip PRIVATE __HIP_PLATFORM_AMD__ ONEBIT_HIP_ARCH_LIST="${names}")
  target_include_directories(onebit_hip SYSTEM PRIVATE ${ONEBIT_HIP_INCLUDE})
  find_library(ONEBIT_HIP_RUNTIME amdhip64 PATHS /opt/rocm/lib REQUIRED)
  target_link_libraries(onebit_hip PUBLIC onebit_plan ${ONEBIT_HIP_RUNTIME})
  set(sources ${${sources_var}})
  list(FILTER sources EXCLUDE REGEX "none/rocm\\.cpp$")
  set(${sources_var} ${sources} PARENT_SCOPE)
endfunction()
