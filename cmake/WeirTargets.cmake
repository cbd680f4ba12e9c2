# What every target of weir is made of, and the two functions by which folders add layers and tests.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(CK REQUIRED ck)

# Concurrency Kit: what we use lives in its headers, so nothing of it is linked.
add_library(weir_ck INTERFACE)
target_compile_options(weir_ck INTERFACE ${CK_CFLAGS})
target_include_directories(weir_ck SYSTEM INTERFACE ${CK_INCLUDE_DIRS})

# How our own code is compiled. Linked PRIVATE by every target of ours, never exported.
add_library(weir_build INTERFACE)
target_compile_features(weir_build INTERFACE c_std_11)
target_compile_definitions(weir_build INTERFACE _GNU_SOURCE
    $<$<BOOL:${WEIR_ASSERTS}>:WEIR_ASSERTS> $<$<BOOL:${WEIR_FAULTS}>:WEIR_FAULTS>
    $<$<STREQUAL:${WEIR_SANITIZE},thread>:WEIR_TSAN>)
target_compile_options(weir_build INTERFACE -fno-omit-frame-pointer
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${WEIR_WERROR}>:-Werror>)
if(WEIR_SANITIZE STREQUAL "address")
    target_compile_options(weir_build INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all)
    target_link_options(weir_build INTERFACE -fsanitize=address,undefined)
elseif(WEIR_SANITIZE STREQUAL "thread")
    target_compile_options(weir_build INTERFACE -fsanitize=thread)
    target_link_options(weir_build INTERFACE -fsanitize=thread)
elseif(NOT WEIR_SANITIZE STREQUAL "")
    message(FATAL_ERROR "WEIR_SANITIZE is '${WEIR_SANITIZE}': empty, address or thread")
endif()

# weir_layer(NAME SOURCES file... [DEPENDS layer...] [LIBRARIES target...])
# A layer is one static library wr_NAME. Without sources it is only its dependencies.
function(weir_layer name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LIBRARIES")
    list(TRANSFORM arg_DEPENDS PREPEND wr_)
    if(NOT arg_SOURCES)
        add_library(wr_${name} INTERFACE)
        target_link_libraries(wr_${name} INTERFACE ${arg_DEPENDS} Threads::Threads)
        target_include_directories(wr_${name} INTERFACE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/include)
        return()
    endif()
    add_library(wr_${name}_objects OBJECT ${arg_SOURCES})
    set_target_properties(wr_${name}_objects PROPERTIES
        POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden C_EXTENSIONS OFF)
    target_include_directories(wr_${name}_objects PRIVATE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(wr_${name}_objects PRIVATE weir_build Threads::Threads ${arg_LIBRARIES})
    add_library(wr_${name} STATIC $<TARGET_OBJECTS:wr_${name}_objects>)
    set_target_properties(wr_${name} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(wr_${name} INTERFACE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(wr_${name} INTERFACE ${arg_DEPENDS} ${arg_LIBRARIES} Threads::Threads)
    set_property(GLOBAL APPEND PROPERTY WEIR_LAYER_OBJECTS wr_${name}_objects)
    set_property(GLOBAL APPEND PROPERTY WEIR_LAYER_LIBRARIES ${arg_LIBRARIES})
endfunction()

# weir_test(NAME LAYERS layer... SOURCES file... [LIBRARIES target...] [LABELS label...] [TIMEOUT seconds])
# One program, one CTest. LAYERS names what is linked (with what it depends on); `runtime` is everything.
# A leak or a race that a sanitizer prints fails the test even if the program's exit code is 0.
function(weir_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "LAYERS;SOURCES;LIBRARIES;LABELS")
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    set(target test_${folder}_${name})
    list(TRANSFORM arg_LAYERS PREPEND wr_)
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    add_executable(${target} ${arg_SOURCES})
    target_link_libraries(${target} PRIVATE weir_test_support ${arg_LAYERS} ${arg_LIBRARIES} weir_build)
    add_test(NAME ${folder}/${name} COMMAND ${target} -j1)
    set_tests_properties(${folder}/${name} PROPERTIES
        TIMEOUT ${arg_TIMEOUT} LABELS "${folder};${arg_LABELS}"
        FAIL_REGULAR_EXPRESSION "AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:")
endfunction()
