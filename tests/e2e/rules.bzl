"""Tests with real processes of the program."""

load("//third_party:rules.bzl", "megascale_test")

def cluster_test(name, deps = [], data = [], tags = []):
    """Runs drivers, agents and workers. `tags`: "exclusive" where what it asks for depends on time, as a failure that is
    noticed, or on memory of the whole machine; "local" where it mounts or makes control groups, which the sandbox forbids."""
    megascale_test(
        name = name,
        size = "large",
        data = data + ["//cli:megascale"],
        tags = tags + ["no_tsan"],  # CAF, gRPC, RocksDB and OpenMP
        deps = deps + [
            ":cluster",
            "//runtime/base",
            "@system//:absl",
        ],
    )
