"""What the compiler does not hold: layers by include, sizes of files, words that promise instead of deliver.

Runs over the source tree itself; each finding is one line `path:line: what, and what is allowed`.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_ENDINGS = {".h", ".cc", ".cu", ".cuh"}

# folder -> what its files may include of ours
ALLOWED = {
    "runtime": {"runtime", "proto"},
    "gpu": {"gpu", "runtime", "proto"},
    "actors": {"actors", "runtime", "proto"},
    "controlplane": {"controlplane", "actors", "runtime", "proto"},
    "cli": {"cli", "controlplane", "actors", "runtime", "gpu", "proto"},
}
# library header prefix -> folders that may see it
LIBRARIES = {
    "caf/": {"actors", "controlplane"},
    "grpcpp/": {"controlplane", "cli"},
    "grpc/": {"controlplane", "cli"},
    "rocksdb/": {"controlplane"},
    "cuda": {"gpu"},
    "nccl": {"gpu"},
    "CLI/": {"cli"},
    "yaml-cpp/": {"cli"},
}
LIMITS = {"header": 300, "source": 600, "test": 800}
# What waits or decides by the wall clock: a step of it must cause nothing. abseil's timed waits do (base::StopSignal does not).
WALL_CLOCK = re.compile(
    r"absl::Now\(|system_clock|CLOCK_REALTIME|gettimeofday|(WaitForNotification|Await|LockWhen|Wait)With(Timeout|Deadline)\(")
# path -> why it may
WALL_CLOCK_ALLOWED = {
    "runtime/base/clock.cc": "the seam itself",
    "runtime/base/clock.h": "the seam itself",
    "controlplane/client/job_client.cc": "deadlines of gRPC, which turns them into monotonic time at once",
    "controlplane/driver/driver_server.cc": "the same; warns of certificates that expire",
    "controlplane/agent/agent_server.cc": "warns of a certificate that expires",
    "controlplane/security/authority.cc": "certificates are valid from and until a date",
    "controlplane/security/probe.cc": "the same",
    "controlplane/security/tls_check.cc": "the same",
    "cli/certs_command.cc": "the same",
}
# A pipeline schedule by name: only runtime/plan knows what one does.
SCHEDULE = re.compile(r"\bPIPELINE_SCHEDULE_[A-Z0-9]|\bSchedule::k[A-Z0-9]")
# path -> why it may
SCHEDULE_ALLOWED = {
    "runtime/job/pipeline_schedule.cc": "what a job calls a schedule and what plans call it: the names, nothing else",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|not (yet )?implemented|unimplemented|placeholder)\b", re.IGNORECASE)


def kind_of(path):
    if path.name.endswith("_test.cc") or path.parts[0] == "tests":
        return "test"
    return "header" if path.suffix in {".h", ".cuh"} else "source"


def findings_in(path, text):
    relative = path.relative_to(ROOT)
    folder = relative.parts[0]
    lines = text.splitlines()
    limit = LIMITS[kind_of(relative)]
    if len(lines) > limit:
        yield f"{relative}:{len(lines)}: {len(lines)} lines; a {kind_of(relative)} has at most {limit}"
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            yield f"{relative}:{number}: says that it is not finished: {line.strip()}"
        if len(line) > 100 and "http" not in line and not line.startswith("#include"):
            yield f"{relative}:{number}: {len(line)} columns; at most 100"
        if kind_of(relative) != "test" and WALL_CLOCK.search(line) and str(relative) not in WALL_CLOCK_ALLOWED:
            yield f"{relative}:{number}: waits or decides by the wall clock: {line.strip()}"
        if (kind_of(relative) != "test" and SCHEDULE.search(line) and "runtime/plan" != str(relative.parent)
                and str(relative) not in SCHEDULE_ALLOWED):
            yield f"{relative}:{number}: names a schedule; only runtime/plan may tell one from another: {line.strip()}"
        include = re.match(r'#include [<"]([^>"]+)[>"]', line)
        if not include or folder not in ALLOWED:
            continue
        target = include.group(1)
        if line.startswith('#include "') and target.split("/")[0] in ALLOWED:
            if target.split("/")[0] not in ALLOWED[folder]:
                yield f"{relative}:{number}: {folder} may not include {target}"
        if target.endswith(".grpc.pb.h") and folder not in LIBRARIES["grpcpp/"]:
            yield f"{relative}:{number}: {folder} may not see gRPC services"
        for prefix, folders in LIBRARIES.items():
            if target.startswith(prefix) and folder not in folders:
                yield f"{relative}:{number}: {folder} may not include <{target}>"


def folder_findings():
    for directory in sorted({path.parent for path in sources()}):
        relative = directory.relative_to(ROOT)
        if relative.parts[0] == "tests":
            continue
        if not (directory / "README.md").exists():
            yield f"{relative}: has no README.md"
        headers = [header for header in directory.glob("*.h") if not header.name.startswith("test_")]
        if len(headers) > 16:
            yield f"{relative}: {len(headers)} headers; make sub-folders at 16"


def sources():
    for folder in [*ALLOWED, "tests"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCE_ENDINGS and path.is_file():
                yield path


def main():
    files = list(sources())
    if len(files) < 50:
        sys.exit(f"tidy: only {len(files)} sources under {ROOT}: not run over the source tree")
    findings = [finding for path in files for finding in findings_in(path, path.read_text())]
    findings += folder_findings()
    for finding in findings:
        print(finding)
    if findings:
        sys.exit(f"tidy: {len(findings)} findings")
    print(f"tidy: {len(files)} files are in order")


main()
