# onebit_isa(SOURCES_VAR): gives each *_avx2.cpp and *_avx512.cpp its instruction set, and only these files. With
# ONEBIT_NATIVE_ISA off, or on a processor family that has neither, they are left out and dispatch.cpp knows it.
# GCC 12 warns of uninitialised variables inside its own AVX-512 intrinsics, hence the two -Wno-.
function(onebit_isa sources_var)
  set(sources ${${sources_var}})
  if(ONEBIT_NATIVE_ISA AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    foreach(source ${sources})
      if(source MATCHES "_avx512\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-mavx512f;-mavx512bw;-mavx512vl;-mavx512vnni;-mavx2;-mfma;-mf16c;-Wno-uninitialized;-Wno-maybe-uninitialized")
      elseif(source MATCHES "_avx2\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
      elseif(source MATCHES "cpu/dispatch\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS ONEBIT_NATIVE_ISA)
      endif()
    endforeach()
  else()
    list(FILTER sources EXCLUDE REGEX "_avx(2|512)\\.cpp$")
    set(${sources_var} ${sources} PARENT_SCOPE)
  endif()
endfunction()
