# shoal_proto(NAME [PROTOS ...] [SERVICES ...] [DEPS ...]): generated C++ of .proto files as a library.
# SERVICES also get gRPC stubs. Files are looked for in proto/ and in the packages that bring
# grpc.health.v1 and google.rpc.
set(SHOAL_PROTO_PATHS ${CMAKE_CURRENT_SOURCE_DIR}/proto /usr/share/grpc-proto
    /usr/share/gocode/src/github.com/gogo/googleapis)

function(shoal_proto name)
  cmake_parse_arguments(ARG "" "" "PROTOS;SERVICES;DEPS" ${ARGN})
  set(out ${CMAKE_BINARY_DIR}/gen/${name})
  file(MAKE_DIRECTORY ${out})
  set(includes)
  foreach(path ${SHOAL_PROTO_PATHS})
    list(APPEND includes -I${path})
  endforeach()
  set(all ${ARG_PROTOS} ${ARG_SERVICES})
  list(REMOVE_DUPLICATES all)
  set(generated)
  foreach(proto ${all})
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(outputs ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    set(grpc_args)
    if(proto IN_LIST ARG_SERVICES)
      list(APPEND outputs ${out}/${stem}.grpc.pb.cc ${out}/${stem}.grpc.pb.h)
      set(grpc_args --grpc_out=${out}
          --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    set(source)
    foreach(path ${SHOAL_PROTO_PATHS})
      if(EXISTS ${path}/${proto} AND NOT source)
        set(source ${path}/${proto})
      endif()
    endforeach()
    add_custom_command(OUTPUT ${outputs}
      COMMAND protobuf::protoc ${includes} --cpp_out=${out} ${grpc_args} ${proto}
      DEPENDS ${source} VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  add_library(${name} STATIC ${generated})
  target_include_directories(${name} SYSTEM PUBLIC ${out})
  target_compile_options(${name} PRIVATE -w)
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf gRPC::grpc++ ${ARG_DEPS})
endfunction()
