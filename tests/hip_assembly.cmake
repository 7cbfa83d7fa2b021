# Compiles the 4-bit kernel for AMD GPUs to assembly and reads it: the matrix instruction is there, no register is
# spilled. Run by ctest where clang 19 and HIP's headers are; "not tested" where they are not.
# cmake -DSOURCE=... -DCOMPILER=... -DFLAGS=... -DARCH=... -DOUT=... -P hip_assembly.cmake
execute_process(COMMAND ${COMPILER} ${FLAGS} --offload-arch=${ARCH} --cuda-device-only -S
  ${SOURCE}/src/backend/hip/matmul_iu4.cu -o ${OUT} COMMAND_ERROR_IS_FATAL ANY)
file(READ ${OUT} text)
string(REGEX MATCHALL "v_wmma_i32_16x16x16_iu4" instructions "${text}")
list(LENGTH instructions n)
if(n EQUAL 0)
  message(FATAL_ERROR "${ARCH}: no v_wmma_i32_16x16x16_iu4")
endif()
foreach(nothing "private_segment_fixed_size" "vgpr_spill_count" "sgpr_spill_count")
  if(NOT text MATCHES "\\.${nothing}: +0\n")
    message(FATAL_ERROR "${ARCH}: ${nothing} is not 0")
  endif()
endforeach()
string(REGEX MATCH "\\.vgpr_count: +([0-9]+)" registers "${text}")
message("${ARCH}: ${n} v_wmma_i32_16x16x16_iu4, ${CMAKE_MATCH_1} vector registers, nothing spilled")
