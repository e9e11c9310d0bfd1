# Flags that every target shares. The floor is x86-64-v3 (AVX2, FMA, F16C); files for wider vectors add their own.
# -ffp-contract=off: the compiler must not fuse a multiply and an add behind our back, or results would depend on
# how it chose to vectorise; where a fused operation is wanted the code says std::fma or its intrinsic.
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3;-ffp-contract=off;-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor>"
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers> $<$<CONFIG:Release>:-O3>
  "$<$<COMPILE_LANGUAGE:CXX>:-g1;-fno-math-errno>")
if(DEEPINFER_SANITIZE)
  add_compile_options(-fsanitize=${DEEPINFER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DEEPINFER_SANITIZE})
endif()
find_program(DEEPINFER_CCACHE ccache)
if(DEEPINFER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DEEPINFER_CCACHE})
endif()
find_program(DEEPINFER_MOLD mold)
if(DEEPINFER_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
