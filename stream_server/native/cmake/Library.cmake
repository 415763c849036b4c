# The targets StreamClient::stream_client (shared) and StreamClient::stream_client_static.
file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/*.c")

function(stream_client_compile target)
    target_compile_options(${target} PRIVATE -Wall -Wextra)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
    stream_client_include(${target})
endfunction()

function(stream_client_include target)
    target_include_directories(${target} PUBLIC
        "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
endfunction()

# The name by which those who use the library know a target.
function(stream_client_name target name)
    add_library(StreamClient::${name} ALIAS ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME ${name})
endfunction()

# The shared libraries lie in one folder and find each other there.
function(stream_client_shared target)
    set_target_properties(${target} PROPERTIES
        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
        INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

add_library(stream_client_objects OBJECT ${sources})
stream_client_compile(stream_client_objects)
target_link_libraries(stream_client_objects PRIVATE StreamClient::zeromq)

add_library(stream_client SHARED $<TARGET_OBJECTS:stream_client_objects>)
add_library(stream_client_static STATIC $<TARGET_OBJECTS:stream_client_objects>)
foreach(target stream_client stream_client_static)
    stream_client_include(${target})
    target_link_libraries(${target} PRIVATE StreamClient::zeromq pthread m)
    stream_client_name(${target} ${target})
endforeach()
stream_client_shared(stream_client)
set_target_properties(stream_client_static PROPERTIES OUTPUT_NAME stream_client)
if(NOT top_level)
    set_target_properties(stream_client_static PROPERTIES EXCLUDE_FROM_ALL TRUE)
endif()
