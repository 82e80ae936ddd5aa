"""Build rules of this project: protocol buffers, gRPC services and unit tests. Those of CUDA are in gpu/rules.bzl."""

def cc_message_library(name, srcs, imports = [], deps = [], visibility = ["//visibility:public"]):
    """The C++ messages of .proto files, made by the system's protoc. `imports`: .proto files they import."""
    outs = [src.replace(".proto", end) for src in srcs for end in [".pb.h", ".pb.cc"]]
    native.genrule(
        name = name + "_generate",
        srcs = srcs + imports,
        outs = outs,
        cmd = "protoc -I. --cpp_out=$(GENDIR) " + " ".join(["$(location %s)" % src for src in srcs]),
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        deps = deps + ["@system//:protobuf"],
        visibility = visibility,
    )

def cc_service_library(name, srcs, imports = [], deps = [], visibility = ["//visibility:private"]):
    """The gRPC stubs of .proto files whose messages are a cc_message_library in `deps`."""
    outs = [src.replace(".proto", end) for src in srcs for end in [".grpc.pb.h", ".grpc.pb.cc"]]
    native.genrule(
        name = name + "_generate",
        srcs = srcs + imports,
        outs = outs,
        cmd = "protoc -I. --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin " +
              " ".join(["$(location %s)" % src for src in srcs]),
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        deps = deps + ["@system//:grpc"],
        visibility = visibility,
    )

def megascale_test(name, srcs = None, deps = [], **kwargs):
    """A GoogleTest binary; `name` is the file's name without its ending.

    The tag "no_tsan", with its reason beside it, keeps a test out of `./dev test --config=tsan`: it runs threads
    of a library that was not built with ThreadSanitizer, which then sees races where the library's own locks are.
    """
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        size = kwargs.pop("size", "small"),
        deps = deps + ["@system//:gtest_main"],
        **kwargs
    )
