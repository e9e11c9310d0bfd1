# deepinfer_folder(NAME SOURCES... LIBRARIES...): the target of one folder of src/, linked with exactly the folders that
# src/dependencies.txt allows it to include, plus the named outside libraries.
file(STRINGS ${CMAKE_SOURCE_DIR}/src/dependencies.txt DEEPINFER_DEPENDENCY_LINES REGEX "^[a-z]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/dependencies.txt)

function(deepinfer_target_of folder out)
  string(REPLACE "/" "_" name ${folder})
  set(${out} deepinfer_${name} PARENT_SCOPE)
endfunction()

function(deepinfer_folder folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  deepinfer_target_of(${folder} target)
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/src/${folder}/)
  add_library(${target} STATIC ${ARG_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(${target} PUBLIC fmt::fmt PRIVATE ${ARG_LIBRARIES})
  foreach(line ${DEEPINFER_DEPENDENCY_LINES})
    if(line MATCHES "^${folder}: *(.*)$")
      separate_arguments(allowed UNIX_COMMAND "${CMAKE_MATCH_1}")
      foreach(dependency ${allowed})
        deepinfer_target_of(${dependency} dependency_target)
        if(TARGET ${dependency_target})  # a backend may be left out
          target_link_libraries(${target} PUBLIC ${dependency_target})
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()

# deepinfer_test(folder/name_test.cc LIBRARIES...): one gtest program a test file, registered test by test.
function(deepinfer_test source)
  cmake_parse_arguments(ARG "" "" "LIBRARIES" ${ARGN})
  string(REGEX REPLACE "\\.cc$" "" name ${source})
  string(REPLACE "/" "_" name ${name})
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE DEEPINFER_TESTS_DIR="${CMAKE_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  # Tests ask for more memory than there is, and are to get the answer that the system gives.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES ENVIRONMENT
                       "ASAN_OPTIONS=allocator_may_return_null=1")
endfunction()
