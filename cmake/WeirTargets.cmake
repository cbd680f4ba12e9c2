# What every target of weir is made of, and the two functions by which folders add layers and tests.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(CK REQUIRED ck)

# Concurrency Kit: what we use lives in its headers, so nothing of it is linked.
add_library(weir_ck INTERFACE)
target_compile_options(weir_ck INTERFACE ${CK_CFLAGS})
target_include_directories(weir_ck SYSTEM INTERFACE ${CK_INCLUDE_DIRS})

# The io_uring back end, where liburing is. Empty lists without it.
option(WEIR_TEST_COMPLETION "Run what reads from connections in completion mode, too" OFF)
set(WEIR_URING AUTO CACHE STRING "The io_uring back end: AUTO (where liburing is found), ON, OFF")
set_property(CACHE WEIR_URING PROPERTY STRINGS AUTO ON OFF)
if(WEIR_URING STREQUAL "AUTO")
    pkg_check_modules(URING QUIET IMPORTED_TARGET liburing>=2.3)
elseif(WEIR_URING)
    pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing>=2.3)
else()
    set(URING_FOUND FALSE)
endif()
if(URING_FOUND)
    set(WEIR_URING_TARGET PkgConfig::URING)
    set(WEIR_URING_SOURCES uring.c uring_command.c uring_ring.c uring_receive.c uring_probe.c)
endif()

# How our own code is compiled. Linked PRIVATE by every target of ours, never exported.
add_library(weir_build INTERFACE)
target_compile_definitions(weir_build INTERFACE _GNU_SOURCE
    $<$<BOOL:${WEIR_ASSERTS}>:WEIR_ASSERTS> $<$<BOOL:${WEIR_FAULTS}>:WEIR_FAULTS>
    $<$<STREQUAL:${WEIR_SANITIZE},thread>:WEIR_TSAN> $<$<BOOL:${URING_FOUND}>:WEIR_URING>)
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

# Whole-library optimisation, in optimised builds. The objects keep their machine code beside it, because
# the installed static library must serve every compiler and linker; only GCC can do both.
include(CheckIPOSupported)
check_ipo_supported(RESULT WEIR_IPO OUTPUT ignored LANGUAGES C)
if(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU" OR WEIR_SANITIZE)
    set(WEIR_IPO FALSE)
endif()

function(weir_optimise target)
    if(WEIR_IPO)
        set_target_properties(${target} PROPERTIES
            INTERPROCEDURAL_OPTIMIZATION_RELEASE ON INTERPROCEDURAL_OPTIMIZATION_RELWITHDEBINFO ON)
        target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-ffat-lto-objects>)
    endif()
endfunction()

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
        POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
    # What a thread keeps is a few pointers: they fit into what every loader leaves for libraries that come
    # late, and no access calls the loader.
    target_compile_options(wr_${name}_objects PRIVATE -ftls-model=initial-exec)
    target_include_directories(wr_${name}_objects PRIVATE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(wr_${name}_objects PRIVATE weir_build Threads::Threads ${arg_LIBRARIES})
    weir_optimise(wr_${name}_objects)
    add_library(wr_${name} STATIC $<TARGET_OBJECTS:wr_${name}_objects>)
    set_target_properties(wr_${name} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(wr_${name} INTERFACE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(wr_${name} INTERFACE ${arg_DEPENDS} ${arg_LIBRARIES} Threads::Threads)
    set_property(GLOBAL APPEND PROPERTY WEIR_LAYER_OBJECTS wr_${name}_objects)
    set_property(GLOBAL APPEND PROPERTY WEIR_LAYER_LIBRARIES ${arg_LIBRARIES})
endfunction()

# What a sanitizer prints fails a test, whatever the program's exit code: Criterion passes leaking tests.
set(WEIR_FAIL_PATTERN "AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:")
set(WEIR_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=second_deadlock_stack=1:history_size=4")

# In weir_test(): the same test once more, SUFFIX, on a ring; skipped where there is none.
macro(weir_ring_test suffix)
    add_test(NAME ${test}.${suffix} COMMAND weir_with_uring $<TARGET_FILE:${target}> -j1)
    get_test_property(${test} ENVIRONMENT environment)
    set_tests_properties(${test}.${suffix} PROPERTIES
        TIMEOUT ${arg_TIMEOUT} LABELS "${folder};${suffix};${arg_LABELS}" SKIP_RETURN_CODE 77
        ENVIRONMENT "${environment};${ARGN}"
        FAIL_REGULAR_EXPRESSION "${WEIR_FAIL_PATTERN}")
    if(folder STREQUAL "stress" OR arg_SERIAL)
        set_tests_properties(${test}.${suffix} PROPERTIES RUN_SERIAL TRUE)
    endif()
endmacro()

# weir_test(NAME LAYERS layer... SOURCES file... [LIBRARIES target...] [LABELS label...] [TIMEOUT seconds]
#           [ENVIRONMENT NAME=value...] [SUFFIX text] [EPOLL_ONLY] [SERIAL] [STREAMS])
# One program, one CTest `folder/NAME`. LAYERS names what is linked (with what it depends on); `runtime`
# is everything. Called again for a NAME that exists, with SUFFIX and ENVIRONMENT, it adds one more run of
# the same program: `folder/NAME.SUFFIX`. What runs the whole library runs once more on io_uring, unless it
# is EPOLL_ONLY. SERIAL: it measures time, and runs while no other test does. STREAMS: it reads from
# connections, and with WEIR_TEST_COMPLETION it runs a third time, in completion mode.
function(weir_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "EPOLL_ONLY;SERIAL;STREAMS" "TIMEOUT;SUFFIX"
        "LAYERS;SOURCES;LIBRARIES;LABELS;ENVIRONMENT")
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    set(target test_${folder}_${name})
    set(test ${folder}/${name})
    list(TRANSFORM arg_LAYERS PREPEND wr_)
    if(arg_SERIAL)
        list(APPEND arg_LABELS timing)
    endif()
    if(arg_SUFFIX)
        string(APPEND test ".${arg_SUFFIX}")
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    if(NOT TARGET ${target})
        add_executable(${target} ${arg_SOURCES})
        target_link_libraries(${target} PRIVATE weir_test_support ${arg_LAYERS} ${arg_LIBRARIES} weir_build)
    endif()
    add_test(NAME ${test} COMMAND ${target} -j1)
    set_tests_properties(${test} PROPERTIES
        TIMEOUT ${arg_TIMEOUT} LABELS "${folder};${arg_LABELS}"
        ENVIRONMENT "${WEIR_TEST_ENVIRONMENT};${arg_ENVIRONMENT}"
        FAIL_REGULAR_EXPRESSION "${WEIR_FAIL_PATTERN}")
    if(folder STREQUAL "stress" OR arg_SERIAL)
        set_tests_properties(${test} PROPERTIES RUN_SERIAL TRUE)
    endif()
    if(URING_FOUND AND NOT arg_EPOLL_ONLY AND NOT arg_SUFFIX AND "wr_runtime" IN_LIST arg_LAYERS)
        weir_ring_test(io_uring WEIR_BACKEND=io_uring)
        if(arg_STREAMS AND WEIR_TEST_COMPLETION)
            weir_ring_test(completion WEIR_BACKEND=io_uring WEIR_RECV=completion)
        endif()
    endif()
endfunction()

# weir_test_inline(NAME way...)
# One more run a way of a test program that exists, with WEIR_INLINE=1: lease, dedicated, io_uring; completion
# with WEIR_TEST_COMPLETION.
function(weir_test_inline name)
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    foreach(way ${ARGN})
        if(way MATCHES "lease|dedicated")
            weir_test(${name} SUFFIX inline-${way} LABELS inline ENVIRONMENT WEIR_INLINE=1 WEIR_POLL=${way})
        elseif(URING_FOUND AND (WEIR_TEST_COMPLETION OR NOT way STREQUAL "completion"))
            set(test ${folder}/${name}.inline-${way})
            set(recv readiness)
            if(way STREQUAL "completion")
                set(recv completion)
            endif()
            add_test(NAME ${test} COMMAND weir_with_uring $<TARGET_FILE:test_${folder}_${name}> -j1)
            set_tests_properties(${test} PROPERTIES
                TIMEOUT 120 LABELS "${folder};io_uring;inline" SKIP_RETURN_CODE 77
                ENVIRONMENT "${WEIR_TEST_ENVIRONMENT};WEIR_INLINE=1;WEIR_BACKEND=io_uring;WEIR_RECV=${recv}"
                FAIL_REGULAR_EXPRESSION "${WEIR_FAIL_PATTERN}")
            if(folder STREQUAL "stress")
                set_tests_properties(${test} PROPERTIES RUN_SERIAL TRUE)
            endif()
        endif()
    endforeach()
endfunction()

# weir_sample(NAME SOURCES file...)
# A program as a host would write it: the public headers and weir::weir, nothing of ours besides.
function(weir_sample name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
    if(NOT TARGET weir)
        return()
    endif()
    add_executable(sample_${name} ${arg_SOURCES})
    set_target_properties(sample_${name} PROPERTIES OUTPUT_NAME ${name})
    target_link_libraries(sample_${name} PRIVATE weir::weir weir_build)
endfunction()

# weir_bench(NAME SOURCES file... [LAYERS layer...] [LIBRARIES target...] [SMOKE argument...])
# A benchmark; with SMOKE it is also a CTest `bench/NAME` that runs it with those arguments (a small size).
function(weir_bench name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LAYERS;LIBRARIES;SMOKE")
    list(TRANSFORM arg_LAYERS PREPEND wr_)
    add_executable(bench_${name} ${arg_SOURCES})
    set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name})
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/bench ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(bench_${name} PRIVATE ${arg_LAYERS} ${arg_LIBRARIES} weir_build Threads::Threads)
    if(WEIR_TESTS AND arg_SMOKE)
        add_test(NAME bench/${name} COMMAND bench_${name} ${arg_SMOKE})
        set_tests_properties(bench/${name} PROPERTIES TIMEOUT 120 LABELS bench
            ENVIRONMENT "${WEIR_TEST_ENVIRONMENT}" FAIL_REGULAR_EXPRESSION "${WEIR_FAIL_PATTERN}")
    endif()
endfunction()
