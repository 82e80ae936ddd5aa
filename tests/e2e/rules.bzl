"""Tests with real processes of the program."""

load("//third_party:rules.bzl", "megascale_test")

# Data of tests that call Cluster::PaceJobs.
PACED = ["//tests/diagnose:paced_program"]

def cluster_test(name, deps = [], data = [], tags = [], shards = None):
    """Runs drivers, agents and workers, which mostly wait, so that others run beside it.

    Args:
      name: of the test, and of its source.
      deps: libraries beyond the cluster.
      data: files beyond the program.
      tags: "exclusive" only where it measures times of less than a second, or keeps all cores busy on purpose;
        "local" where it mounts, makes control groups or looks at processes beyond its own, which the sandbox forbids.
      shards: processes that share its cases. Each makes what the cases share, such as a calm run, once more.
    """
    megascale_test(
        name = name,
        size = "large",
        shard_count = shards,
        data = data + ["//cli:megascale"],
        tags = tags + ["no_tsan"],  # CAF, gRPC, RocksDB and OpenMP
        deps = deps + [
            ":cluster",
            "//runtime/base",
            "//runtime/base/process",
            "@system//:absl",
        ],
    )
