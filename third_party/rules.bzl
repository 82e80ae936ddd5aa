"""Build rules of this project: libraries, programs, unit tests, protocol buffers, gRPC services. Those of CUDA are in
gpu/rules.bzl."""

# Folders whose sources include the messages of the control plane: they begin with the larger precompiled header.
_CONTROL_FOLDERS = [
    "cli",
    "controlplane",
    "tests/api",
    "tests/bench/control",
    "tests/chaos",
    "tests/diagnose",
    "tests/e2e",
    "tests/page",
    "tests/sim",
    "tests/versions",
]

# GCC 12 warns of std::string itself where it was inlined, wrongly; it is silent about headers of the system, but takes
# those that were precompiled for ours.
_PRECOMPILED_COPTS = [
    "-Winvalid-pch",
    "-Wno-array-bounds",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    # What a source keeps to itself is used in classes of that source only, whichever file it is compiled in.
    "-Wno-subobject-linkage",
]

def _precompiled(kwargs):
    """`kwargs` of a rule that compiles C++, so that its sources begin with a header of third_party/precompiled."""
    srcs = kwargs.get("srcs")
    if kwargs.get("copts") or not srcs or type(srcs) != "list":
        return kwargs

    # Tests are compiled with other flags than the rest (.bazelrc), and need the header that was made with them.
    tests = [src for src in srcs if src.endswith("_test.cc")]
    if tests and len(tests) < len(srcs):
        return kwargs
    folder = native.package_name()
    control = [f for f in _CONTROL_FOLDERS if folder == f or folder.startswith(f + "/")]
    name = ("control" if control else "runtime") + ("_test" if tests else "")
    copts = _PRECOMPILED_COPTS + ["-include", "third_party/precompiled/made/%s.h" % name]

    # Without it a source would not be compiled again when a message changes that it includes through another one.
    if control:
        copts = copts + select({"//third_party:clang": [], "//conditions:default": ["-fpch-deps"]})
    kwargs["copts"] = copts
    kwargs["deps"] = kwargs.get("deps", []) + ["//third_party/precompiled:" + name]
    return kwargs

# At most this many sources of a target are one compilation.
_JOINED_MAX = 10

def _joined(name, srcs, end = ".cc", apart = [], edit = "cat", testonly = False):
    """`srcs` of a target, those of its own folder put together (third_party/precompiled/README.md).

    `end`: how the name of such a source ends. `edit`: the command that writes what is put together of a $$source.
    """
    together = [src for src in srcs if src.endswith(end) and src[0] not in ":/" and src not in apart]
    if len(together) < 2:
        return srcs
    num_parts = (len(together) + _JOINED_MAX - 1) // _JOINED_MAX
    size = (len(together) + num_parts - 1) // num_parts
    parts = []
    for i in range(num_parts):
        part = "%s_part_%d" % (name, i)
        native.genrule(
            name = part,
            srcs = together[i * size:(i + 1) * size],
            outs = [part + end],
            cmd = "for source in $(SRCS); do echo \"#line 1 \\\"$$source\\\"\"; %s $$source; echo; done > $@" % edit,
            testonly = testonly,
        )
        parts.append(part + end)
    return [src for src in srcs if src not in together] + select({
        "//third_party:sources_apart": together,
        "//conditions:default": parts,
    })

# Puts the unnamed namespace of a test into one with the test's name: helpers of several tests have the same names.
_NAME_NAMESPACE = ("name=$$(basename $$source .cc); sed -e \"s/^namespace {$$/namespace $$name { namespace {/\"" +
                   " -e 's/^}  \\/\\/ namespace$$/} }  \\/\\/ namespace/'")

def cc_library(name, srcs = [], apart = [], **kwargs):
    """Bazel's cc_library, with headers of libraries precompiled, and its sources compiled together.

    `apart`: sources that are compiled by themselves, because they define a name that another source defines as well.
    """
    joins = not kwargs.get("copts")
    kwargs = _precompiled(dict(kwargs, name = name, srcs = srcs))
    if joins:
        kwargs["srcs"] = _joined(name, srcs, apart = apart, testonly = kwargs.get("testonly", False))
    native.cc_library(**kwargs)

def cc_binary(**kwargs):
    """Bazel's cc_binary, with headers of libraries precompiled (third_party/precompiled)."""
    native.cc_binary(**_precompiled(kwargs))

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
    """A GoogleTest binary: of the file with its name, or of several `srcs`, which are compiled together.

    Tests of a folder that need nothing special are one binary, FOLDER_test; --test_filter picks cases of it.
    The tag "no_tsan", with its reason beside it, keeps a test out of `./dev test --config=tsan`: it runs threads
    of a library that was not built with ThreadSanitizer, which then sees races where the library's own locks are.
    """
    kwargs.setdefault("size", "small")
    kwargs["deps"] = deps + ["@system//:gtest_main"]
    kwargs = _precompiled(dict(kwargs, srcs = srcs or [name + ".cc"]))
    kwargs["srcs"] = _joined(name, kwargs["srcs"], end = "_test.cc", edit = _NAME_NAMESPACE, testonly = True)
    native.cc_test(name = name, **kwargs)
