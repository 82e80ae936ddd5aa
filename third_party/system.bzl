"""Libraries and files that the machine already has, as Bazel repositories."""

# target -> (pkg-config module or linker flags, Debian package)
_LIBRARIES = {
    "absl": ("absl_status absl_statusor absl_strings absl_str_format absl_time absl_flat_hash_map absl_cleanup absl_span absl_synchronization", "libabsl-dev"),
    "caf": ("-lcaf_core", "libcaf-dev"),
    "cli11": ("-", "libcli11-dev"),
    "crypto": ("libcrypto", "libssl-dev"),
    "dnnl": ("-ldnnl", "libdnnl-dev"),
    "grpc": ("grpc++", "libgrpc++-dev"),
    "grpc_reflection": ("-lgrpc++_reflection", "libgrpc++-dev"),
    "gtest": ("gmock gtest", "libgmock-dev"),
    "gtest_main": ("gmock gtest gtest_main", "libgmock-dev"),
    "highway": ("libhwy", "libhwy-dev"),
    "hiredis": ("hiredis", "libhiredis-dev"),
    "json": ("-", "nlohmann-json3-dev"),
    "microhttpd": ("libmicrohttpd gnutls", "libmicrohttpd-dev"),
    "prometheus": ("prometheus-cpp-core", "prometheus-cpp-dev"),
    "protobuf": ("protobuf", "libprotobuf-dev"),
    "rocksdb": ("-lrocksdb -lsnappy -llz4 -lbz2 -lzstd -lz", "librocksdb-dev"),
    "spdlog": ("spdlog fmt", "libspdlog-dev"),
    "ssl": ("libssl libcrypto", "libssl-dev"),
    # Not libunwind itself: it would take the handling of C++ exceptions from the compiler's library.
    "unwind": ("-lunwind-ptrace -lunwind-x86_64 -llzma", "libunwind-dev"),
    "utf8proc": ("libutf8proc", "libutf8proc-dev"),
    "xxhash": ("libxxhash", "libxxhash-dev"),
    "yaml": ("yaml-cpp", "libyaml-cpp-dev"),
    "zlib": ("zlib", "zlib1g-dev"),
    "zstd": ("libzstd", "libzstd-dev"),
}

# Targets that are linked statically, and how the names of their archives begin. Their shared libraries have 34,000
# symbols to look up, which took half of the time that `megascale` needs to start.
_STATIC = ["absl", "grpc", "grpc_reflection", "protobuf", "rocksdb"]
_ARCHIVES = ["absl_", "address_sorting", "bz2", "cares", "gpr", "grpc", "lz4", "protobuf", "re2", "rocksdb", "snappy", "upb"]

# Files that are embedded into programs -> Debian package
_FILES = {
    "/usr/share/javascript/dygraphs/dygraph.min.css": "libjs-dygraphs",
    "/usr/share/javascript/dygraphs/dygraph.min.js": "libjs-dygraphs",
}

def _flags(ctx, source, package, static):
    """The linker's flags of a value of _LIBRARIES."""
    if source == "-":
        return []
    if source.startswith("-"):
        return source.split(" ")
    found = ctx.execute(["pkg-config", "--libs"] + (["--static"] if static else []) + source.split(" "))
    if found.return_code != 0:
        fail("%s was not found: apt-get install %s" % (source, package))
    return [flag for flag in found.stdout.strip().split(" ") if flag]

def _with_archives(flags):
    """`flags` with the archives of libraries in _ARCHIVES, together, because they call each other, before the rest."""
    archives = {}
    for flag in flags:
        if flag.startswith("-l") and [a for a in _ARCHIVES if flag[2:].startswith(a)]:
            archives[flag] = True
    rest = [flag for flag in flags if flag not in archives]
    return ["-Wl,-Bstatic", "-Wl,--start-group"] + archives.keys() + ["-Wl,--end-group", "-Wl,-Bdynamic"] + rest

def _system_libraries_impl(ctx):
    build = ['package(default_visibility = ["//visibility:public"])']
    for name, (source, package) in _LIBRARIES.items():
        flags = repr(_flags(ctx, source, package, static = False))
        if name in _STATIC:
            flags = 'select({"@megascale//third_party:shared_libraries": %s, "//conditions:default": %s})' % (
                flags,
                repr(_with_archives(_flags(ctx, source, package, static = True))),
            )
        build.append('cc_library(name = "%s", linkopts = %s)' % (name, flags))
    for path, package in _FILES.items():
        if not ctx.path(path).exists:
            fail("%s was not found: apt-get install %s" % (path, package))
        name = path.split("/")[-1]
        ctx.symlink(path, name)
        build.append('exports_files(["%s"])' % name)
    ctx.file("BUILD.bazel", "\n".join(build) + "\n")

system_libraries = repository_rule(implementation = _system_libraries_impl, local = True)

# The headers that gpu/ compiles against. The libraries are opened while the program runs: it links none of them.
_CUDA_BUILD = '''package(default_visibility = ["//visibility:public"])
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*"], allow_empty = True),
    includes = ["include"],
)
'''

def _cuda_toolkit_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = ctx.path(home + "/bin/nvcc").exists
    if found:
        ctx.symlink(home + "/include", "include")
    ctx.file("BUILD.bazel", _CUDA_BUILD)
    ctx.file("home.bzl", 'CUDA_HOME = "%s"\nHAVE_CUDA = %s\n' % (home, found))

cuda_toolkit = repository_rule(implementation = _cuda_toolkit_impl, local = True, environ = ["CUDA_HOME"])
