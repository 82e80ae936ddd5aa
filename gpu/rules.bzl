"""Build rules of gpu/. Where the machine has no CUDA toolkit they define empty libraries, and tests that are skipped."""

load("@cuda//:home.bzl", "CUDA_HOME", "HAVE_CUDA")
load("//third_party:rules.bzl", "cc_library", "megascale_test")

# One chip compiles in a minute; releases hold code for Ampere and Hopper, and PTX for chips that came later.
_DEVELOPMENT = "-gencode=arch=compute_90a,code=sm_90a"
_RELEASE = " ".join([
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_80,code=compute_80",
])

def gpu_library(name, srcs = [], hdrs = [], deps = [], **kwargs):
    """A C++ library that sees the headers of CUDA, cuBLASLt or NCCL; empty without the toolkit."""
    cc_library(
        name = name,
        srcs = srcs if HAVE_CUDA else [],
        hdrs = hdrs if HAVE_CUDA else [],
        deps = deps + ["@cuda//:headers"] if HAVE_CUDA else [],
        **kwargs
    )

def gpu_test(name, **kwargs):
    """A GoogleTest binary, as megascale_test; without the toolkit, a test that says it is skipped."""
    if HAVE_CUDA:
        megascale_test(name = name, **kwargs)
    skipped_without_nvcc(name)

def skipped_without_nvcc(name):
    """Without the CUDA toolkit, a test `name` that is skipped, which fails `./dev test --strict`."""
    if not HAVE_CUDA:
        native.sh_test(name = name, size = "small", srcs = ["//gpu:skipped_test.sh"])

def gpu_kernels(name, srcs, hdrs):
    """The kernels of .cu files, twice: for the device, and for tests with the host's compiler.

    `name`: what nvcc makes of each file, embedded; cuda::KernelImages() lists them. `name`_on_host (tests only): the
    same sources as C++, which gpu/emulator runs.
    """
    if not HAVE_CUDA:
        return
    images = []
    for src in srcs:
        image = src.replace(".cu", ".fatbin")
        native.genrule(
            name = name + "_" + src.replace(".", "_"),
            srcs = [src] + hdrs,
            outs = [image],
            cmd = select({
                "//gpu:release": _nvcc(_RELEASE, src),
                "//conditions:default": _nvcc(_DEVELOPMENT, src),
            }),
        )
        images.append(image)
    native.genrule(
        name = name + "_embed",
        srcs = images,
        outs = [name + ".cc"],
        cmd = "$(location //tools:embed) --out $@ --function megascale::cuda::KernelImages $(SRCS)",
        tools = ["//tools:embed"],
    )
    native.cc_library(
        name = name,
        srcs = [name + ".cc"],
        deps = ["//gpu/cuda:kernel_images"],
        visibility = ["//visibility:public"],
    )
    host_sources = []
    for src in srcs:
        host_source = src.replace(".cu", "_on_host.cc")
        native.genrule(
            name = name + "_" + src.replace(".", "_") + "_on_host",
            srcs = [src],
            outs = [host_source],
            cmd = "(echo '#line 1 \"gpu/kernels/%s\"'; cat $<) > $@" % src,
        )
        host_sources.append(host_source)
    native.cc_library(
        name = name + "_on_host",
        testonly = True,
        srcs = host_sources,
        hdrs = hdrs,
        copts = ["-O2"],
        alwayslink = True,  # each kernel registers itself
        deps = ["//gpu/emulator:block_executor"],
        visibility = ["//visibility:public"],
    )

def _nvcc(chips, src):
    return CUDA_HOME + "/bin/nvcc -std=c++20 -O3 -lineinfo " + chips + " -I. -fatbin $(location %s) -o $@" % src
