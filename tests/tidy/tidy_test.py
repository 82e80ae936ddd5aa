"""What the compiler does not hold: layers by include, sizes of files, words that promise instead of deliver.

Runs over the source tree itself; each finding is one line `path:line: what, and what is allowed`.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import joined_sources

SOURCE_ENDINGS = {".h", ".cc", ".cu", ".cuh"}

# folder -> folders from which its files may include
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
    "cublas": {"gpu"},
    "nccl": {"gpu"},
    "CLI/": {"cli"},
    "yaml-cpp/": {"cli"},
}
# folder -> headers that its files may not include, and why
PURE = {
    "runtime/diagnose": (re.compile(r"clock\.h$|^(chrono|ctime|fstream|filesystem|fcntl\.h|unistd\.h|sys/\S+|time\.h)$|absl/time/clock"),
                         "diagnosis is functions of what they are given, without a clock or I/O"),
}
LIMITS = {"header": 300, "source": 600, "test": 800}
# Sources, headers and tests of one folder: ten triples.
FILES_MAX = 30
SCRIPT_ENDINGS = {".py", ".sh", ".js"}
PAGE_COLUMNS = 120
# What waits or decides by the wall clock: a step of it must cause nothing. abseil's timed waits do (base::StopSignal does not).
WALL_CLOCK = re.compile(
    r"absl::Now\(|system_clock|CLOCK_REALTIME|gettimeofday|(WaitForNotification|Await|LockWhen|Wait)With(Timeout|Deadline)\(")
# path -> why it may
WALL_CLOCK_ALLOWED = {
    "runtime/base/clock.cc": "the seam itself",
    "runtime/base/clock.h": "the seam itself",
    "controlplane/client/job_client.cc": "deadlines of gRPC, which turns them into monotonic time at once",
    "controlplane/driver/service/testing/fake_agent_stream.h": "the same",
    "controlplane/driver/service/driver_server.cc": "the same; warns of certificates that expire",
    "controlplane/agent/service/agent_server.cc": "warns of a certificate that expires",
    "controlplane/security/authority.cc": "certificates are valid from and until a date",
    "controlplane/security/probe.cc": "the same",
    "controlplane/security/tls_check.cc": "the same",
    "cli/commands/certs_command.cc": "the same",
    "cli/launch/slurm_agent.cc": "the same",
    "cli/launch/slurm_command.cc": "the same",
    "cli/launch/slurm_run.cc": "the same",
}
# A pipeline schedule by name: only runtime/plan knows what one does.
SCHEDULE = re.compile(r"\bPIPELINE_SCHEDULE_[A-Z0-9]|\bSchedule::k[A-Z0-9]")
# path -> why it may
SCHEDULE_ALLOWED = {
    "runtime/job/pipeline_schedule.cc": "what a job calls a schedule and what plans call it: the names, nothing else",
}
# An example in a comment whose lines a formatter joined, or a rule that it broke. .clang-format keeps both from it.
REFLOWED = re.compile(
    r"^\s*//.*[a-z0-9,.)] +(RETURN_IF_ERROR\(|ASSIGN_OR_RETURN\(|(const )?auto \w+ = )"  # prose, then a statement
    r"|^\s*//.*;\s+//.*\w\([^()]*\);(\s|$)"  # a statement, its comment, and the next statement
    r"|^\s*// -{20,}$")  # the second half of "// --- title -----"
REFLOWED_SAMPLES = [
    "//   region RETURN_IF_ERROR(fabric->Connect());                     // meets members on other machines",
    "//   members of its own groups on other machines auto data = fabric->Make(name).value(); // once",
    "  //   auto cluster = Start(options);  // forks, so it is the first thing in main. cluster->Stop();",
    "// -----------------------------------------------------------------------------",
]
# A comment that begins with a bare "Of" or "Such": its reader does not know yet what is spoken of.
RIDDLE = re.compile(r"^\s*// (Of|Such) ")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|not (yet )?implemented|unimplemented|placeholder)\b", re.IGNORECASE)


IMPURE_SAMPLES = ["runtime/base/clock.h", "absl/time/clock.h", "fstream", "fcntl.h", "unistd.h", "sys/mman.h"]


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
    yield from reflowed_lists(relative, lines)
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            yield f"{relative}:{number}: says that it is not finished: {line.strip()}"
        if REFLOWED.search(line):
            yield f"{relative}:{number}: an example or a rule that formatting reflowed; give each statement its line: {line.strip()}"
        if len(line) > 100 and "http" not in line and not line.startswith("#include"):
            yield f"{relative}:{number}: {len(line)} columns; at most 100"
        if kind_of(relative) != "test" and WALL_CLOCK.search(line) and str(relative) not in WALL_CLOCK_ALLOWED:
            yield f"{relative}:{number}: waits or decides by the wall clock: {line.strip()}"
        if (kind_of(relative) != "test" and SCHEDULE.search(line) and relative.parts[:2] != ("runtime", "plan")
                and str(relative) not in SCHEDULE_ALLOWED):
            yield f"{relative}:{number}: names a schedule; only runtime/plan may tell one from another: {line.strip()}"
        include = re.match(r'#include [<"]([^>"]+)[>"]', line)
        if not include or folder not in ALLOWED:
            continue
        target = include.group(1)
        if line.startswith('#include "') and target.split("/")[0] in ALLOWED:
            if target.split("/")[0] not in ALLOWED[folder]:
                yield f"{relative}:{number}: {folder} may not include {target}"
        for pure, (impure, why) in PURE.items():
            if relative.is_relative_to(pure) and kind_of(relative) != "test" and impure.search(target):
                yield f"{relative}:{number}: may not include {target}: {why}"
        if target.endswith(".grpc.pb.h") and folder not in LIBRARIES["grpcpp/"]:
            yield f"{relative}:{number}: {folder} may not see gRPC services"
        for prefix, folders in LIBRARIES.items():
            if target.startswith(prefix) and folder not in folders:
                yield f"{relative}:{number}: {folder} may not include <{target}>"


def reflowed_lists(relative, lines):
    """The rest of a broken line of an example or a list in a comment: some words, before a deeper line."""
    indented = [re.match(r"^\s*//( {3,})(\S.*)$", line) for line in lines]
    for i in range(1, len(lines) - 1):
        before, rest, after = indented[i - 1:i + 2]
        if (before and rest and after and len(lines[i - 1]) > 85 and len(rest[2]) < 25
                and len(before[1]) == len(rest[1]) < len(after[1])):
            yield f"{relative}:{i + 1}: the rest of a line that formatting broke: {lines[i].strip()}"


def own_includes(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


def is_test_only(path):
    name = path.name
    return name.endswith("_test.cc") or name.startswith("test_") or name.endswith("_benchmark.cc") or "testing" in path.parts


def page_findings():
    """Prose of pages wraps; tables, code and transcripts have the width that they need."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"),
                 *(path for folder in [*ALLOWED, "tests", "examples"] for path in (ROOT / folder).rglob("*.md"))]:
        is_code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            if is_code or re.match(r"    |\s*[|#$>!]", line) or "http" in line:
                continue
            if len(line) > PAGE_COLUMNS:
                yield f"{path.relative_to(ROOT)}:{number}: {len(line)} columns; prose has at most {PAGE_COLUMNS}"


def riddle_findings():
    for path in [*sources(), *(ROOT / "proto").glob("*.proto")]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if RIDDLE.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: begins with a bare Of or Such; write a sentence: {line.strip()}"


def folder_findings():
    for directory in sorted({path.parent for path in sources()}):
        relative = directory.relative_to(ROOT)
        files = [path for path in directory.iterdir() if path.suffix in SOURCE_ENDINGS | SCRIPT_ENDINGS]
        if len(files) > FILES_MAX:
            yield f"{relative}: {len(files)} sources, headers and tests; make sub-folders at {FILES_MAX}"
        if relative.parts[0] == "tests" or directory.name == "testing":
            continue
        if not (directory / "README.md").exists():
            yield f"{relative}: has no README.md"


def joined_findings():
    """Lint looks at sources together, and the compiler compiles those of a library together."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources()
             if kind_of(path.relative_to(ROOT)) != "test" and not path.name.startswith("test_")}
    own = {path: text for path, text in texts.items() if path.endswith(".cc")}
    headers = {path: text for path, text in texts.items() if path.endswith(".h")}
    for path, other, name in joined_sources.clashes(own):
        yield f"{path}: defines {name}, which {other} defines as well; rename one: lint looks at a folder's sources together"
    for path, header, name in joined_sources.hidden_types(own, headers):
        yield f"{path}: defines {name}, which {header} defines in the same namespace; rename one"


def circles():
    """Folders whose files include each other's, directly or through others. What only tests use does not count."""
    reaches = {}
    for path in sources():
        folder = str(path.parent.relative_to(ROOT))
        if folder.split("/")[0] == "tests" or is_test_only(path):
            continue
        edges = reaches.setdefault(folder, set())
        edges.update(str(pathlib.PurePath(include).parent) for include in own_includes(path)
                     if include.split("/")[0] in ALLOWED)
        edges.discard(folder)
    changed = True
    while changed:
        changed = False
        for edges in reaches.values():
            more = set().union(*(reaches.get(edge, set()) for edge in edges)) - edges if edges else set()
            edges.update(more)
            changed = changed or bool(more)
    rounds = {tuple(sorted(other for other in edges if folder in reaches.get(other, set()))): None
              for folder, edges in sorted(reaches.items()) if folder in edges}
    for members in rounds:
        yield f"{', '.join(members)}: folders include each other in a circle"


def drawn_folder(path):
    """The name under which docs/tree.svg draws the folder of `path`; below runtime/ and controlplane/ each folder."""
    parts = path.split("/")
    return parts[1] if parts[0] in {"runtime", "controlplane"} else parts[0]


def picture_findings():
    """docs/tree.svg draws every folder, each in a row above those of all folders that it includes."""
    picture = (ROOT / "docs" / "tree.svg").read_text()
    rows = {name: int(row) for row, name in re.findall(r'data-row="(\d+)">([a-z_]+)<', picture)}
    for path in sources():
        relative = str(path.relative_to(ROOT))
        if relative.split("/")[0] not in ALLOWED or is_test_only(path):
            continue
        folder = drawn_folder(relative)
        if folder not in rows:
            yield f"{relative}: docs/tree.svg does not draw {folder}"
            continue
        for include in own_includes(path):
            other = drawn_folder(include)
            if include.split("/")[0] in ALLOWED and other != folder and rows.get(other, -1) >= rows[folder]:
                yield f"{relative}: includes {include}, which docs/tree.svg draws beside or above it"


def sources():
    for folder in [*ALLOWED, "tests"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCE_ENDINGS and path.is_file():
                yield path


def main():
    for sample in REFLOWED_SAMPLES:
        if not REFLOWED.search(sample):
            sys.exit(f"tidy: does not find the reflowed example {sample}")
    for folder, (impure, _) in PURE.items():
        if not all(impure.search(sample) for sample in IMPURE_SAMPLES) or impure.search("runtime/base/check.h"):
            sys.exit(f"tidy: does not tell what {folder} may include")
    files = list(sources())
    if len(files) < 50:
        sys.exit(f"tidy: only {len(files)} sources under {ROOT}: not run over the source tree")
    findings = [finding for path in files for finding in findings_in(path, path.read_text())]
    findings += riddle_findings()
    findings += folder_findings()
    findings += page_findings()
    findings += joined_findings()
    findings += circles()
    findings += picture_findings()
    for finding in findings:
        print(finding)
    if findings:
        sys.exit(f"tidy: {len(findings)} findings")
    print(f"tidy: {len(files)} files are in order")


main()
